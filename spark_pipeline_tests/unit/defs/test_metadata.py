"""What the UI is given of each result."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from spark_pipeline.benchmark.result import BenchmarkPoint
from spark_pipeline.benchmark.stage import BenchmarkResult
from spark_pipeline.defs import metadata
from spark_pipeline.fleet.plan import Command, StagePlan
from spark_pipeline.serving.api import Completion
from spark_pipeline.serving.record import ServingRecord
from spark_pipeline.serving.stage import ServingResult
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
