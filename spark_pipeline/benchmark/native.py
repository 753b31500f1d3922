"""The JSON that `vllm bench serve --save-result` writes, read with distrust.

The tool ends with status 0 when every request failed (seen with 0.32 and 0.33: `completed: 0`, all metrics 0.0), so
only the counts and the numbers say whether anything was measured.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_pipeline.benchmark.result import Latency, PerSecond
from spark_pipeline.errors import BenchmarkError
from spark_pipeline.spec.profile import Point

PERCENTILES = (50, 90, 95, 99)
# The tool's names on its command line and in its file; `e2el` is left out unless it is asked for.
METRICS = ("ttft", "tpot", "itl", "e2el")


class NativeResult(BaseModel):
    """The fields that are used. Ignored on purpose: max_output_tokens_per_s counts chunks, not tokens, and
    max_concurrent_requests counts whole seconds (192 was seen for a concurrency of 64)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    completed: int
    failed: int
    duration: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: PerSecond
    output_throughput: PerSecond
    total_token_throughput: PerSecond
    ttft_ms: Latency
    tpot_ms: Latency | None
    itl_ms: Latency | None
    e2el_ms: Latency


class _Counts(BaseModel):
    model_config = ConfigDict(extra="allow")

    completed: int
    failed: int
    total_output_tokens: int


def parse(text: str, point: Point) -> NativeResult:
    """The result of measuring `point`.

    Raises:
        BenchmarkError: not the tool's JSON; not every request was answered in full; a number is missing, zero or not
            finite.
    """
    try:
        counts = _Counts.model_validate_json(text)
    except ValidationError as error:
        raise BenchmarkError(
            "the benchmark's result file cannot be read", observed=f"{_first(error)}: {text[:200]}", remedy=_REMEDY
        ) from error
    _every_request_answered(counts, point)
    raw = counts.model_dump()
    latencies = {
        f"{metric}_ms": {
            "mean": raw.get(f"mean_{metric}_ms"),
            **{f"p{rank}": raw.get(f"p{rank}_{metric}_ms") for rank in PERCENTILES},
        }
        for metric in METRICS
        # With one output token there are no gaps; the tool writes 0.0 for them.
        if point.output_tokens > 1 or metric not in ("tpot", "itl")
    }
    try:
        return NativeResult.model_validate({"tpot_ms": None, "itl_ms": None, **raw, **latencies})
    except ValidationError as error:
        raise BenchmarkError(
            "the benchmark's numbers are not numbers", observed=_first(error), remedy=_REMEDY
        ) from error


def _every_request_answered(counts: _Counts, point: Point) -> None:
    if counts.completed != point.requests or counts.failed != 0:
        raise BenchmarkError(
            "requests failed under the benchmark: its numbers would describe the ones that did not",
            observed=f"{counts.completed} of {point.requests} completed, {counts.failed} failed",
            remedy=_REMEDY,
        )
    asked = point.requests * point.output_tokens
    if counts.total_output_tokens < asked:
        raise BenchmarkError(
            "answers were shorter than the profile asks for: the point would not be comparable",
            observed=f"{counts.total_output_tokens} output tokens of {asked}",
            remedy="lower output_tokens in the profile, or raise serve.max_model_len",
        )


_REMEDY = "see the tool's output and the engine's log (`docker logs` of the head's container), then measure again"


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
