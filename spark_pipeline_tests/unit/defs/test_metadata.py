"""What the UI is given of each result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import dagster as dg
import pytest

from spark_pipeline.benchmark.result import BenchmarkPoint
from spark_pipeline.benchmark.stage import BenchmarkResult
from spark_pipeline.defs import metadata
from spark_pipeline.fleet.plan import Command, StagePlan
from spark_pipeline.serving.api import Completion
from spark_pipeline.serving.record import ServingRecord
from spark_pipeline.serving.stage import ServingResult
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.node.messages import BadFile, Report
from spark_pipeline.weights.record import WeightsRecord
from spark_pipeline.weights.result import NodeResult, WeightsResult
from spark_pipeline_tests.unit.benchmark.samples import generation, point

PLAN = StagePlan("benchmark_results", True, ("2 points are missing",), (Command("head", ("vllm", "bench", "serve")),))
SERVING = ServingResult(
    record=ServingRecord(
        generation=generation(),
        url="http://10.77.0.10:8000",
        model_id="tiny",
        ready_seconds=41.5,
        container_ids=("1", "2"),
        run_id="run",
    ),
    changed=True,
    completion=Completion(prompt="The capital of France is", text=" ```Paris```", tokens=8),
    seconds=45.123456,
)

MANIFEST = Manifest(
    repo="lab/tiny",
    commit="c" * 40,
    files=tuple(
        ManifestFile(path=f"model-{n}.safetensors", size_bytes=500_000_000, sha256="a" * 64) for n in range(10)
    ),
)
WEIGHTS = WeightsResult(
    record=WeightsRecord(
        repo=MANIFEST.repo,
        revision="main",
        commit=MANIFEST.commit,
        directory=f"/models/lab/tiny/{MANIFEST.commit}",
        size_bytes=MANIFEST.size_bytes,
        files=len(MANIFEST.files),
        manifest_sha256=MANIFEST.sha256,
        run_id="run",
        verified_at=datetime.now(UTC),
    ),
    changed=True,
    plan=StagePlan("model_weights", True, ("head: 10 files missing",), (Command("head", ("python3", "-c", "x")),)),
    page_url=f"https://huggingface.co/lab/tiny/tree/{MANIFEST.commit}",
    nodes=(
        NodeResult("head", downloaded_bytes=5_000_000_000, download_seconds=40.0, verified_files=10),
        NodeResult(
            "peer",
            copied_bytes=5_500_000_000,
            copy_seconds=6.875,
            verified_files=11,
            verified_bytes=5_500_000_000,
            read_bytes=500_000_000,
            verify_seconds=0.3333,
            repaired=(BadFile("model-3.safetensors", "sha256 a", "sha256 b"),),
        ),
    ),
    manifest=MANIFEST,
    reports={name: Report(free_bytes=10**12, sealed=MANIFEST.sha256) for name in ("head", "peer")},
)


def benchmark(*points: BenchmarkPoint, changed: bool = True) -> BenchmarkResult:
    return BenchmarkResult(
        deployment="tiny",
        changed=changed,
        measured=len(points) if changed else 0,
        points=points,
        history_file=Path("data/benchmarks/tiny.jsonl"),
        plan=PLAN,
        seconds=12.0,
    )


def shown(result: dg.MaterializeResult) -> dict[str, object]:
    """Key -> plain value, as Dagster takes it."""
    normal = dg.AssetMaterialization("x", metadata=result.metadata or {}).metadata
    return {key: value.value for key, value in normal.items()}


def rows_of(result: dg.MaterializeResult, name: str) -> list[dict[str, object]]:
    """A table's rows."""
    found = cast(Mapping[str, dg.TableMetadataValue], result.metadata or {})[name]
    return [dict(record.data) for record in found.records]


def test_the_weights_are_named_by_commit_with_a_link_to_it_and_what_the_run_moved():
    facts = shown(metadata.of_weights(WEIGHTS))
    assert facts["summary"] == "lab/tiny at cccccccccccc, 10 files, 5.0 GB: proven on every node"
    assert (facts["repository"], facts["revision"], facts["commit"]) == ("lab/tiny", "main", "c" * 40)
    assert isinstance((metadata.of_weights(WEIGHTS).metadata or {})["page"], dg.UrlMetadataValue)
    assert facts["page"] == f"https://huggingface.co/lab/tiny/tree/{'c' * 40}"
    assert facts["manifest_sha256"] == MANIFEST.sha256
    assert (facts["size_bytes"], facts["files"]) == (5_000_000_000, 10)
    assert (facts["downloaded_bytes"], facts["copied_bytes"]) == (5_000_000_000, 5_500_000_000)
    assert facts["repaired_files"] == 1


def test_each_node_has_a_row_with_its_bytes_seconds_rates_and_the_files_that_were_repaired():
    head, peer = rows_of(metadata.of_weights(WEIGHTS), "nodes")
    assert (head["node"], peer["node"]) == ("head", "peer")
    assert (head["downloaded_bytes"], head["download_seconds"], head["download_mb_per_second"]) == (
        5_000_000_000,
        40.0,
        125.0,
    )
    assert (peer["copied_bytes"], peer["copy_seconds"], peer["copy_mb_per_second"]) == (5_500_000_000, 6.88, 800.0)
    assert (peer["read_bytes"], peer["verify_seconds"], peer["verify_mb_per_second"]) == (500_000_000, 0.33, 1500.2)
    assert (head["repaired"], peer["repaired"]) == ("", "model-3.safetensors")
    assert (head["copy_mb_per_second"], peer["download_mb_per_second"]) == ("", "")  # no work, no rate


def test_weights_that_are_proven_bring_three_green_checks():
    checks = metadata.of_weights(WEIGHTS).check_results or []
    assert {check.check_name: check.passed for check in checks} == {
        "manifest_complete": True,
        "hashes_on_every_node": True,
        "free_space": True,
    }


def test_a_repeat_with_nothing_to_do_shows_no_rate_of_nothing():
    idle = replace(WEIGHTS, changed=False, nodes=(NodeResult("head"), NodeResult("peer")))
    facts = shown(metadata.of_weights(idle))
    assert str(facts["summary"]).endswith("nothing to do")
    assert (facts["downloaded_bytes"], facts["copied_bytes"], facts["verified_bytes"]) == (0, 0, 0)
    assert not [key for key in rows_of(metadata.of_weights(idle), "nodes")[0] if key.endswith("per_second")]


def test_the_endpoint_is_a_link_and_its_words_are_quoted_whole():
    facts = shown(metadata.of_serving(SERVING))
    assert facts["endpoint"] == "http://10.77.0.10:8000/v1"
    assert facts["completion"] == "~~~~\nThe capital of France is ```Paris```\n~~~~"
    assert facts["ready_seconds"] == 41.5
    assert "ready after 42 s" in str(facts["summary"])


def test_a_repeat_says_that_nothing_was_done():
    facts = shown(metadata.of_serving(replace(SERVING, changed=False)))
    assert facts["changed"] is False
    assert str(facts["summary"]).endswith("nothing to do")


def test_each_point_gives_numbers_whose_names_stay_the_same_from_run_to_run():
    first, second = point(), point(output_tokens_per_second=99.0, generation=9, run_id="later")
    names = [set(shown(metadata.of_benchmark(benchmark(item)))) for item in (first, second)]
    assert names[0] == names[1]
    assert f"smoke_64in_16out_c{first.concurrency}_output_tokens_per_second" in names[0]


def test_the_commands_are_shown_as_they_were_run():
    assert shown(metadata.of_benchmark(benchmark(point())))["commands"] == "```\nhead$ vllm bench serve\n```"


def test_answers_of_one_token_have_no_time_per_token():
    facts = shown(metadata.of_benchmark(benchmark(point(tpot_ms=None, itl_ms=None))))
    assert not [key for key in facts if "tpot" in key]


def test_no_points_are_no_table():
    assert "points" not in shown(metadata.of_benchmark(benchmark(changed=False)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_no_plot_can_draw_are_left_out(value):
    facts = shown(metadata.of_benchmark(replace(benchmark(point()), seconds=value)))
    assert "duration_seconds" not in facts
