"""One generation: everything that is needed to start a deployment's ranks once, or once again.

A generation is a set of containers, one a rank, that live and end together. The engine is the main process of its
container, so the container's state, log and exit status are the engine's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from spark_pipeline.spec.base import Record
from spark_pipeline.spec.deployment import Backend

LABEL = "spark_pipeline."


class Rank(BaseModel):
    """One process group member on one node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int
    node: str
    fabric: str
    container: str
    run: tuple[str, ...]
    """`docker run ...`, whole."""
    serve: tuple[str, ...] | None
    """`vllm serve ...` for this rank; None where Ray starts the work itself."""


class Generation(Record):
    """A deployment, resolved: no branch, no tag, no `auto` is left in it."""

    deployment: str
    number: int
    spec_hash: str
    fleet: str
    repo: str
    commit: str
    model_directory: str
    image_reference: str
    image_declared: str
    image_fingerprint: str
    image_digest: str | None
    engine: dict[str, str]
    """Versions inside the image by distribution: vllm, ray, torch, transformers, python."""
    backend: Backend
    tensor: int
    pipeline: int
    head_address: str
    port: int
    rendezvous_port: int
    served_name: str
    max_model_len: int | None
    serve_args: tuple[str, ...]
    serve_environment: dict[str, str]
    start_timeout_seconds: int
    ranks: tuple[Rank, ...]
    run_id: str

    @property
    def head(self) -> Rank:
        return self.ranks[0]

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline


def container_name(deployment: str, number: int, rank: int) -> str:
    return f"sp-{deployment}-g{number}-r{rank}"


def labels(
    *, deployment: str, number: int, rank: int, spec_hash: str, image_fingerprint: str, revision: str, run_id: str
) -> dict[str, str]:
    """What a container says of itself; read back from the nodes, this is the truth about what runs."""
    return {
        LABEL + "deployment": deployment,
        LABEL + "generation": str(number),
        LABEL + "rank": str(rank),
        LABEL + "spec_hash": spec_hash,
        LABEL + "image_fingerprint": image_fingerprint,
        LABEL + "revision": revision,
        LABEL + "run_id": run_id,
    }


# What JSON writes the same way every time.
Resolved = str | int | None | list[str] | dict[str, str] | list[list[str]]


def spec_hash(parts: Mapping[str, Resolved]) -> str:
    """16 hex digits that change exactly when something that was asked for changes.

    Only what is declared and resolved goes in, never what is observed and fluctuates (free memory), so that the same
    declaration keeps the same hash from run to run.
    """
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True).encode()).hexdigest()[:16]
