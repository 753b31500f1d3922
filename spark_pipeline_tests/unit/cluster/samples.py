"""The user's deployment with its records and its machines' recorded facts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from spark_pipeline.cluster.generation import LABEL
from spark_pipeline.cluster.target import Target, build_target
from spark_pipeline.fleet.docker import Container
from spark_pipeline.fleet.facts import NodeFacts, parse
from spark_pipeline.image.record import EngineFacts, ImageRecord
from spark_pipeline.spec.deployment import Backend
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.record import WeightsRecord

RECORDED = Path(__file__).parents[2] / "recorded" / "sparks"
ROOT = Path(__file__).parents[3]
WHEN = datetime(2026, 11, 30, tzinfo=UTC)


def facts() -> dict[str, NodeFacts]:
    return {name: parse(name, (RECORDED / f"{name}.txt").read_text(encoding="utf-8")) for name in ("head", "peer")}


def engine(ray: str | None = "2.53.0", *, nnodes: bool = True) -> EngineFacts:
    return EngineFacts(
        vllm="0.17.1rc1.dev25",
        ray=ray,
        python="3.12.3",
        torch="2.10.0",
        transformers="4.57.6",
        supports_nnodes=nnodes,
        architecture="arm64",
    )


def target(deployment: str = "qwen35_122b", *, backend: str | None = None, facts_of_engine: EngineFacts | None = None):
    project = Project.load(ROOT)
    declared = project.deployment(deployment)
    if backend is not None:
        declared = declared.model_copy(update={"backend": Backend(backend)})
    return build_target(
        declared,
        project.fleet(declared.fleet),
        project.nodes_of(declared),
        weights(),
        image(facts_of_engine or engine()),
    )


def weights() -> WeightsRecord:
    commit = "a" * 40
    return WeightsRecord(
        repo="Qwen/Qwen3.5-122B-A10B-FP8",
        revision="main",
        commit=commit,
        directory=f"/home/aurora/models/Qwen/Qwen3.5-122B-A10B-FP8/{commit}",
        size_bytes=125_000_000_000,
        files=50,
        manifest_sha256="b" * 64,
        run_id="run",
        verified_at=WHEN,
    )


def image(facts_of_engine: EngineFacts) -> ImageRecord:
    return ImageRecord(
        reference="spark-pipeline/qwen35_122b:cccccccccccc",
        declared="hellohal2064/vllm-qwen3.5-gb10:latest",
        digest="sha256:" + "d" * 64,
        fingerprint="c" * 64,
        size_bytes=20_000_000_000,
        engine=facts_of_engine,
        run_id="run",
        verified_at=WHEN,
    )


def container(
    wanted: Target, rank: int, *, number: int = 7, state: str = "running", spec_hash: str | None = None, node: str = ""
) -> Container:
    return Container(
        node=node or wanted.nodes[rank].name,
        name=f"sp-{wanted.deployment.name}-g{number}-r{rank}",
        container_id=f"{number}{rank}" * 8,
        image_id="sha256:1",
        labels={
            LABEL + "deployment": wanted.deployment.name,
            LABEL + "generation": str(number),
            LABEL + "rank": str(rank),
            LABEL + "spec_hash": spec_hash or wanted.spec_hash,
        },
        state=state,
        exit_code=None if state == "running" else 1,
        started_at="2026-11-30T00:00:00Z",
    )
