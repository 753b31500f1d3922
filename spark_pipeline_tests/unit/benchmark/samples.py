"""A generation, its points and a native result, as the tests of this folder need them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spark_pipeline.benchmark.result import BenchmarkPoint, Latency
from spark_pipeline.cluster.generation import Generation, Rank, labels
from spark_pipeline.spec.deployment import Backend
from spark_pipeline.spec.profile import Point, Profile

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
IMAGE = "4f2ac91b07de" + "0" * 52
COMMIT = "0f1e2d3c4b5a69788796a5b4c3d2e1f001122334"
SMOKE = Profile(
    name="smoke",
    points=(
        Point(input_tokens=64, output_tokens=16, concurrency=1, requests=8),
        Point(input_tokens=64, output_tokens=16, concurrency=8, requests=32),
    ),
)
# A real result of vLLM 0.25 on a GPU, without the per-request lists: 8 requests, 128 tokens each.
RECORDINGS = Path(__file__).parent / "recorded"
RECORDED = (RECORDINGS / "vllm_0_25_gpu.json").read_text()
RECORDED_POINT = Point(input_tokens=512, output_tokens=128, concurrency=1, requests=8)


def generation(**changed: object) -> Generation:
    ranks = tuple(
        Rank(
            rank=rank, node=node, fabric=f"192.168.200.1{2 + rank}", container=f"sp-tiny-g3-r{rank}", run=(), serve=None
        )
        for rank, node in enumerate(("head", "peer"))
    )
    values: dict[str, object] = {
        "deployment": "tiny", "number": 3, "spec_hash": "00aa11bb22cc33dd", "fleet": "lab", "repo": "lab/tiny",
        "commit": COMMIT, "model_directory": f"/home/spark/models/lab/tiny/{COMMIT}",
        "image_reference": "vllm-cpu:0.32.0", "image_declared": "vllm-cpu:0.32.0", "image_fingerprint": IMAGE,
        "image_digest": None, "engine": {"vllm": "0.32.0+cpu", "ray": "2.53.0", "python": "3.11.2"},
        "backend": Backend.RAY, "tensor": 2, "pipeline": 1, "head_address": "192.168.200.12", "port": 8000,
        "rendezvous_port": 29500, "served_name": "tiny", "max_model_len": 512, "serve_args": ("--enforce-eager",),
        "serve_environment": {}, "start_timeout_seconds": 600, "ranks": ranks, "run_id": "run-1",
    }  # fmt: skip
    return Generation.model_validate(values | changed)


def latency(milliseconds: float) -> Latency:
    m = milliseconds
    return Latency(mean=m * 1.02, p50=m, p90=m * 1.2, p95=m * 1.3, p99=m * 1.5)


def point(**changed: object) -> BenchmarkPoint:
    """A measured point of `smoke`; give what the test is about."""
    values: dict[str, object] = {
        "deployment": "tiny", "fleet": "lab", "nodes": ("head", "peer"), "generation": 3,
        "spec_hash": "00aa11bb22cc33dd", "repo": "lab/tiny", "commit": COMMIT, "image_declared": "vllm-cpu:0.32.0",
        "image_reference": "vllm-cpu:0.32.0", "image_fingerprint": IMAGE, "image_digest": None,
        "vllm_version": "0.32.0+cpu", "ray_version": "2.53.0", "torch_version": None, "transformers_version": None,
        "python_version": "3.11.2", "backend": "ray", "tensor": 2, "pipeline": 1, "max_model_len": 512,
        "serve_args": ("--enforce-eager",), "profile": "smoke", "input_tokens": 64, "output_tokens": 16,
        "concurrency": 8, "requests": 32, "seed": 17, "tool_version": "0.32.0+cpu", "started_at": NOON,
        "duration_seconds": 1.25, "run_id": "run-1", "native_file": "tiny/x.json", "completed": 32, "failed": 0,
        "input_tokens_total": 2048, "output_tokens_total": 512, "output_tokens_per_second": 409.6,
        "total_tokens_per_second": 2048.0, "requests_per_second": 25.6, "ttft_ms": latency(40), "tpot_ms": latency(5),
        "itl_ms": latency(5), "e2e_ms": latency(115), "prefix_cache_hit_rate": 0.0, "other_requests": 0,
    }  # fmt: skip
    return BenchmarkPoint.model_validate(values | changed)


def weeks(count: int, **changed: object) -> list[BenchmarkPoint]:
    return [point(started_at=NOON + timedelta(weeks=week), **changed) for week in range(count)]


def native(**changed: object) -> str:
    """What `vllm bench serve` writes for 8 requests of 64 in, 16 out."""
    values = json.loads(RECORDED) | {"total_output_tokens": 128, "completed": 8, "failed": 0}
    return json.dumps(values | changed)


def container(rank: int, *, spec_hash: str = "00aa11bb22cc33dd", started_at: str = "2026-11-30T11:00:00Z") -> str:
    """One line of `docker container inspect --format '{{json .}}'`."""
    carried = labels(
        deployment="tiny", number=3, rank=rank, spec_hash=spec_hash, image_fingerprint=IMAGE, revision=COMMIT,
        run_id="run-1",
    )  # fmt: skip
    return json.dumps(
        {
            "Id": f"{rank}" * 64,
            "Name": f"/sp-tiny-g3-r{rank}",
            "Image": "sha256:1",
            "Config": {"Labels": carried},
            "State": {"Status": "running", "ExitCode": 0, "StartedAt": started_at},
        }
    )


def endpoint(
    *, models: tuple[str, ...] = ("tiny",), finished: float = 0, looked_up: float = 0, cached: float = 0
) -> str:
    """What probe.py prints."""
    return json.dumps(
        {
            "models": models,
            "prompt_tokens_looked_up": looked_up,
            "prompt_tokens_cached": cached,
            "requests_finished": finished,
        }
    )
