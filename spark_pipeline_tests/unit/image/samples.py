"""An image that a real engine described, and variations of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from spark_pipeline.fleet.docker_objects import ImageFacts, parse_image
from spark_pipeline.image.answer import ImageAnswer, ProbeResult, Registry
from spark_pipeline.image.record import EngineFacts

RECORDED = Path(__file__).parents[2] / "recorded" / "docker"
IMAGE_JSON = (RECORDED / "image_20.10.json").read_text(encoding="utf-8")
LAYERS: tuple[str, ...] = tuple(json.loads(IMAGE_JSON)["RootFS"]["Layers"])
DIGEST = "sha256:" + "d" * 64
ENGINE = EngineFacts(
    vllm="0.32.0",
    ray="2.53.0",
    python="3.11.2",
    torch="2.13.0+cpu",
    transformers="5.17.0",
    supports_nnodes=True,
    architecture="amd64",
)
PROBED = ProbeResult(
    answer=ImageAnswer(
        engine=ENGINE,
        python="/usr/bin/python3",
        directory="/usr/lib/python3/dist-packages/vllm",
        installed_as="distribution",
        pythons=(),
        packages={"vllm": "0.32.0", "ray": "2.53.0", "torch": "2.13.0+cpu", "transformers": "5.17.0"},
        requirements=("transformers<5.20,>=5.16.1",),
        registry=Registry(architectures={"Qwen3ForCausalLM": "qwen3:Qwen3ForCausalLM"}),
        config_types=(),
        transformers_types=("qwen3",),
    )
)


def image(
    reference: str = "engine:1",
    *,
    architecture: str = "amd64",
    repo_digests: tuple[str, ...] = (),
    layers: tuple[str, ...] = LAYERS,
    size_bytes: int = 8,
) -> ImageFacts:
    facts = parse_image(reference, IMAGE_JSON)
    return replace(facts, architecture=architecture, repo_digests=repo_digests, layers=layers, size_bytes=size_bytes)


def image_json(*, repo_digests: tuple[str, ...] = (), command: str | None = None) -> str:
    """As `docker image inspect` prints it; another `command` makes it another image."""
    raw = json.loads(IMAGE_JSON)
    raw["RepoDigests"] = list(repo_digests)
    if command:
        raw["Config"]["Cmd"] = [command]
    return json.dumps(raw)
