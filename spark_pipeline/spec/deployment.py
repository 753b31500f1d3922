"""What should be serving, as declared in data/deployments/*.yaml."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from spark_pipeline.spec.base import Declaration, Matches, Name
from spark_pipeline.spec.cron import check_cron
from spark_pipeline.spec.secrets import names_a_secret

Repo = Annotated[
    str,
    Matches(
        r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*",
        "write the hub's organisation/name, such as Qwen/Qwen3.5-122B-A10B-FP8",
    ),
]


def _no_parent(value: str) -> str:
    if ".." in value:
        raise ValueError("must not contain '..'")
    return value


# A git branch, tag or commit. No leading dash, no `..`: the value travels into URLs and command lines.
Revision = Annotated[
    str,
    Matches(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "write a branch, a tag or a commit of 40 hex digits, such as main"),
    AfterValidator(_no_parent),
]
ImageRef = Annotated[
    str,
    Matches(
        r"([A-Za-z0-9.-]+(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
        "write an image as `docker pull` takes it, such as vllm-node:latest or name@sha256: and 64 hex digits",
    ),
]
EnvName = Annotated[
    str, Matches(r"[A-Za-z_][A-Za-z0-9_]*", "write the name of an environment variable, such as NCCL_DEBUG")
]
Cron = Annotated[str, AfterValidator(check_cron)]


def _scalar_text(value: object) -> object:
    """`args: [--max-num-seqs, 4]`: YAML reads 4 as a number; on a command line it is a word."""
    if isinstance(value, bool):
        raise ValueError("write true or false in quotes: as a flag's word its spelling matters")
    return str(value) if isinstance(value, int | float) else value


Word = Annotated[str, BeforeValidator(_scalar_text)]

# Set by the pipeline from the declaration's own fields; given twice, the engine would take the last one silently.
_OWN_FLAGS = {
    "--model": "model",
    "--host": "serve.port",
    "--port": "serve.port",
    "--served-model-name": "serve.served_name",
    "--max-model-len": "serve.max_model_len",
    "--gpu-memory-utilization": "serve.gpu_memory_utilization",
    "--tensor-parallel-size": "parallel.tensor",
    "-tp": "parallel.tensor",
    "--pipeline-parallel-size": "parallel.pipeline",
    "-pp": "parallel.pipeline",
    "--distributed-executor-backend": "backend",
    "--nnodes": "backend",
    "-n": "backend",
    "--node-rank": "backend",
    "-r": "backend",
    "--master-addr": "backend",
    "--master-port": "backend",
    "--headless": "backend",
}


class Backend(StrEnum):
    """How the ranks on several nodes find each other."""

    RAY = "ray"
    MP = "mp"


class Model(Declaration):
    """The weights."""

    repo: Repo
    revision: Revision = Field(default="main", description="Branch, tag or commit; resolved to 40 hex once per run.")
    hub_url: Annotated[str, Matches(r"https?://[^\s@]+", "write http(s)://host without a login in it")] | None = Field(
        default=None,
        description="Hub to ask; default: the environment's HF_ENDPOINT, else the public hub. No credentials in it.",
    )


class Graft(Declaration):
    """Model files of one candidate put into another one: rarely right, so only ever asked for by name."""

    base: ImageRef = Field(description="The candidate that gets the files.")
    donor: ImageRef = Field(description="The candidate whose vLLM knows the architecture.")


class Image(Declaration):
    """The engine's container image."""

    candidates: tuple[ImageRef, ...] = Field(min_length=1, description="In order of preference.")
    augment: Literal["auto", "never"] = Field(
        default="auto", description="auto: Ray may be layered onto an image that has none. never: as they are, or not."
    )
    graft: Graft | None = Field(
        default=None, description="Build this graft and no other way; its own vLLM inspects it before it goes anywhere."
    )

    @model_validator(mode="after")
    def _grafts_candidates(self) -> Self:
        if self.graft is None:
            return self
        for name in (self.graft.base, self.graft.donor):
            if name not in self.candidates:
                raise ValueError(f"graft names {name}: write it under candidates too, so that it is asked")
        if self.graft.base == self.graft.donor:
            raise ValueError("graft.base and graft.donor are the same image: name two candidates")
        if self.augment == "never":
            raise ValueError("augment: never and graft contradict each other: take one of the two out")
        return self


class Parallel(Declaration):
    """How the model is spread. One rank runs on each node."""

    tensor: int = Field(default=1, ge=1, le=64)
    pipeline: int = Field(default=1, ge=1, le=64)

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline


class Serve(Declaration):
    """The engine's command line and environment."""

    port: int = Field(default=8000, ge=1024, le=44000, description="Of the API on the head.")
    served_name: Annotated[
        str, Matches(r"[A-Za-z0-9][A-Za-z0-9._/:-]*", "write the model id that clients will name, such as qwen3.5-122b")
    ] = Field(description="Model id in /v1/models.")
    max_model_len: int | None = Field(default=None, ge=1, description="Tokens; default: the model's own.")
    gpu_memory_utilization: Literal["auto"] | Annotated[float, Field(gt=0.0, le=0.95)] = "auto"
    args: tuple[Word, ...] = ()
    env: dict[EnvName, Word] = Field(default_factory=dict)
    start_timeout_seconds: int = Field(
        default=5400, ge=10, description="First start on a GB10 may tune kernels for more than an hour."
    )

    @property
    def rendezvous_port(self) -> int:
        """Where the ranks meet (Ray's or torch's port on the head): 29500 for API port 8000, and never the same for
        two deployments of one fleet, whose API ports differ."""
        return self.port + 21500

    @field_validator("args")
    @classmethod
    def _no_own_flags(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        for word in args:
            flag = re.split("=", word, maxsplit=1)[0].replace("_", "-")
            if flag == "--api-key":
                raise ValueError("--api-key: the word would stand in `ps`, labels and records; put keys into a proxy")
            if flag in _OWN_FLAGS:
                raise ValueError(f"{word!r} is set from `{_OWN_FLAGS[flag]}`; give it there, not in args")
        return args

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if names_a_secret(name):
                raise ValueError(
                    f"{name}: a secret in a declaration would stand in `ps`, plans and records; weights are downloaded "
                    "with the orchestrator's HF_TOKEN, and the engine needs none"
                )
        return env


class Benchmark(Declaration):
    """Which profiles measure the deployment, in this order."""

    profiles: tuple[Name, ...] = ()


class Policy(Declaration):
    """What happens by itself."""

    on_failure: Literal["restore", "remove"] = "restore"
    on_regression: Literal["report"] = "report"
    redeploy_cron: Cron | None = Field(default=None, description="Five cron fields, UTC. Left out: no schedule.")


class Deployment(Declaration):
    """One model that should be served by one fleet."""

    name: Name
    fleet: Name
    model: Model
    image: Image
    parallel: Parallel = Parallel()
    backend: Literal["auto"] | Backend = "auto"
    serve: Serve
    benchmark: Benchmark = Benchmark()
    policy: Policy = Policy()
