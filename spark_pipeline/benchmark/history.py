"""What was measured, for good: data/benchmarks/<deployment>.jsonl, one line a point, only ever appended to.

Dagster's event log is no archive: deleting a run deletes its numbers (facts/dagster.md 1.7).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from spark_pipeline.benchmark.result import BenchmarkPoint, Latency
from spark_pipeline.errors import StateError

if TYPE_CHECKING:
    import pandas  # takes 0.4 s to import, and only the table needs it


def append(path: Path, point: BenchmarkPoint) -> None:
    """Add one line and see it on the disk. Two writers at once both get their line in whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        # A writer that died left half a line: the next point begins on a line of its own.
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = (b"\n" if torn else b"") + point.model_dump_json().encode() + b"\n"
        written = os.write(descriptor, line)
        if written != len(line):
            raise OSError(f"{path}: only {written} of {len(line)} bytes were written; is the disk full?")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if not existed:
        _sync_directory(path.parent)


def read(path: Path) -> tuple[BenchmarkPoint, ...]:
    """Every whole point, in the order of writing; empty when nothing was measured yet. Torn lines are left out.

    Raises:
        StateError: a line is JSON, but no point of this schema version.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    points = []
    for number, line in enumerate(lines, start=1):
        if not _is_whole(line):
            continue
        try:
            points.append(BenchmarkPoint.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise StateError(
                f"{path}:{number} is not a benchmark point of this version",
                observed=f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}",
                remedy=f"move the line out of {path} (an older or newer pipeline wrote it), or use that version",
            ) from error
    return tuple(points)


def newest(points: Sequence[BenchmarkPoint]) -> tuple[BenchmarkPoint, ...]:
    """The newest point of each deployment and shape, in the order in which the shapes first appeared."""
    latest: dict[tuple[object, ...], BenchmarkPoint] = {}
    for point in sorted(points, key=lambda point: point.started_at):
        latest[(point.deployment, *point.shape)] = point
    return tuple(latest.values())


def history_table(points: Sequence[BenchmarkPoint]) -> pandas.DataFrame:
    """One row a point, oldest first, units in the column names. Times are UTC. Missing values are None, never NaN."""
    import pandas

    rows = [_row(point) for point in sorted(points, key=lambda point: point.started_at)]
    return pandas.DataFrame(rows, columns=list(_COLUMNS), dtype=object)


_COLUMNS = (
    "measured_at_utc", "deployment", "profile", "input_tokens", "output_tokens", "concurrency", "requests",
    "output_tokens_per_second", "total_tokens_per_second", "requests_per_second",
    "ttft_ms_p50", "ttft_ms_p95", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p95", "inter_chunk_ms_p50",
    "inter_chunk_ms_p95", "e2e_ms_p50", "e2e_ms_p95", "duration_seconds",
    "generation", "backend", "vllm_version", "image", "commit", "run_id",
)  # fmt: skip


def _row(point: BenchmarkPoint) -> tuple[object, ...]:
    def part(latency: Latency | None, name: str) -> float | None:
        return None if latency is None else round(getattr(latency, name), 2)

    return (
        point.started_at.strftime("%Y-%m-%d %H:%M:%S"), point.deployment, point.profile, point.input_tokens,
        point.output_tokens, point.concurrency, point.requests,
        round(point.output_tokens_per_second, 2), round(point.total_tokens_per_second, 2),
        round(point.requests_per_second, 3),
        part(point.ttft_ms, "p50"), part(point.ttft_ms, "p95"), part(point.ttft_ms, "p99"),
        part(point.tpot_ms, "p50"), part(point.tpot_ms, "p95"),
        part(point.itl_ms, "p50"), part(point.itl_ms, "p95"), part(point.e2e_ms, "p50"), part(point.e2e_ms, "p95"),
        round(point.duration_seconds, 2),
        point.generation, str(point.backend), point.vllm_version, point.image_short, point.commit_short, point.run_id,
    )  # fmt: skip


def _is_whole(line: bytes) -> bool:
    """A point is one JSON object; any beginning of it, or zeros left by a power cut, is not JSON."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
