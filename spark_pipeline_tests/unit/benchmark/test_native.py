from __future__ import annotations

import json

import pytest

from spark_pipeline.benchmark.native import parse
from spark_pipeline.errors import BenchmarkError
from spark_pipeline.spec.profile import Point
from spark_pipeline_tests.unit.benchmark.samples import RECORDED, RECORDED_POINT, RECORDINGS

# vLLM 0.32 asked for 600 tokens of a model that takes 512: 400 to each of 4 requests, and exit status 0.
ALL_FAILED = (RECORDINGS / "vllm_0_32_cpu_all_failed.json").read_text()

SHORT = Point(input_tokens=600, output_tokens=8, concurrency=4, requests=4)


def changed(**values: object) -> str:
    return json.dumps(json.loads(RECORDED) | values)


def test_a_real_result_is_read_in_milliseconds_and_tokens_a_second():
    result = parse(RECORDED, RECORDED_POINT)
    assert (result.completed, result.failed, result.total_output_tokens) == (8, 0, 1024)
    assert result.output_throughput == pytest.approx(185.118, abs=1e-3)
    assert result.ttft_ms.p50 == pytest.approx(43.497, abs=1e-3)
    assert result.tpot_ms is not None
    assert result.tpot_ms.p95 == pytest.approx(5.143, abs=1e-3)
    assert result.e2el_ms.mean == pytest.approx(691.038, abs=1e-3)


def test_a_real_result_of_the_cpu_build_is_read():
    point = Point(input_tokens=64, output_tokens=16, concurrency=8, requests=32)
    result = parse((RECORDINGS / "vllm_0_32_cpu.json").read_text(), point)
    assert (result.completed, result.total_output_tokens) == (32, 512)
    assert result.e2el_ms.p99 == pytest.approx(1095.178, abs=1e-3)


def test_a_run_whose_requests_all_failed_is_refused_with_its_counts():
    with pytest.raises(BenchmarkError) as refused:
        parse(ALL_FAILED, SHORT)
    assert "0 of 4 completed, 4 failed" in refused.value.observed


@pytest.mark.parametrize(("completed", "failed"), [(7, 1), (7, 0), (8, 1), (9, 0)])
def test_counts_that_do_not_add_up_are_refused(completed: int, failed: int):
    with pytest.raises(BenchmarkError, match="requests failed"):
        parse(changed(completed=completed, failed=failed), RECORDED_POINT)


def test_zeros_are_refused_even_when_the_counts_are_right():
    with pytest.raises(BenchmarkError) as refused:
        parse(json.dumps(json.loads(ALL_FAILED) | {"completed": 4, "failed": 0, "total_output_tokens": 32}), SHORT)
    assert "greater than 0" in refused.value.observed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "fast"])
def test_a_number_that_is_none_is_refused(value: object):
    with pytest.raises(BenchmarkError) as refused:
        parse(changed(p95_ttft_ms=value), RECORDED_POINT)
    assert "ttft_ms.p95" in refused.value.observed


def test_a_missing_percentile_is_refused():
    values = json.loads(RECORDED)
    del values["p99_e2el_ms"]
    with pytest.raises(BenchmarkError) as refused:
        parse(json.dumps(values), RECORDED_POINT)
    assert "e2el_ms.p99" in refused.value.observed


def test_shorter_answers_than_asked_for_are_refused():
    with pytest.raises(BenchmarkError) as refused:
        parse(changed(total_output_tokens=1023), RECORDED_POINT)
    assert "1023 output tokens of 1024" in refused.value.observed


def test_answers_of_one_token_have_no_time_between_tokens():
    one = Point(input_tokens=512, output_tokens=1, concurrency=1, requests=8)
    zeros = {key: 0.0 for key in json.loads(RECORDED) if key.endswith(("_tpot_ms", "_itl_ms"))}
    result = parse(changed(total_output_tokens=8, **zeros), one)
    assert result.tpot_ms is None
    assert result.itl_ms is None


@pytest.mark.parametrize("text", ["", "cat: no such file", "[1, 2]", '{"completed": 8'])
def test_anything_but_a_result_file_is_refused(text: str):
    with pytest.raises(BenchmarkError, match="cannot be read"):
        parse(text, RECORDED_POINT)
