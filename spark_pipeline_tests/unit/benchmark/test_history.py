from __future__ import annotations

import fcntl
import multiprocessing
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from spark_pipeline.benchmark.history import append, history_table, newest, read
from spark_pipeline.errors import StateError
from spark_pipeline_tests.unit.benchmark.samples import NOON, point


def test_what_was_appended_is_read_back_in_order(tmp_path: Path):
    history = tmp_path / "benchmarks" / "tiny.jsonl"
    points = (point(seed=1), point(seed=2, tpot_ms=None, itl_ms=None, prefix_cache_hit_rate=None))
    for one in points:
        append(history, one)
    assert read(history) == points
    assert history.read_text().count("\n") == 2


def test_no_file_is_an_empty_history(tmp_path: Path):
    assert read(tmp_path / "none.jsonl") == ()


@pytest.mark.parametrize("torn_bytes", [1, 40, 400])
def test_a_torn_last_line_is_left_out_and_the_next_point_gets_its_own_line(tmp_path: Path, torn_bytes: int):
    history = tmp_path / "tiny.jsonl"
    append(history, point(seed=1))
    with history.open("ab") as file:
        file.write(point(seed=2, run_id="größe").model_dump_json().encode()[:torn_bytes])
    assert [one.seed for one in read(history)] == [1]
    append(history, point(seed=3))
    assert [one.seed for one in read(history)] == [1, 3]


def test_zeros_that_a_power_cut_left_are_left_out(tmp_path: Path):
    history = tmp_path / "tiny.jsonl"
    append(history, point(seed=1))
    with history.open("ab") as file:
        file.write(b"\0" * 512)
    append(history, point(seed=2))
    assert [one.seed for one in read(history)] == [1, 2]


def test_a_line_of_another_version_is_refused_with_its_number(tmp_path: Path):
    history = tmp_path / "tiny.jsonl"
    append(history, point())
    with history.open("a") as file:
        file.write('{"schema_version": 2, "speed": "fast"}\n')
    with pytest.raises(StateError, match=r"tiny\.jsonl:2 "):
        read(history)


def _append_many(history: Path, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        append(history, point(seed=seed))


def test_two_processes_that_append_at_once_lose_no_line(tmp_path: Path):
    history = tmp_path / "tiny.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(history, first)) for first in (0, 50)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)
    assert sorted(one.seed for one in read(history)) == list(range(100))


def test_an_append_waits_for_the_writer_that_holds_the_file(tmp_path: Path):
    history = tmp_path / "tiny.jsonl"
    append(history, point(seed=1))
    with history.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = threading.Thread(target=append, args=(history, point(seed=2)))
        writer.start()
        writer.join(timeout=0.2)
        assert writer.is_alive()
    writer.join(timeout=30)
    assert [one.seed for one in read(history)] == [1, 2]


def test_newest_keeps_one_point_a_shape_whatever_the_order_of_lines():
    late = point(started_at=NOON + timedelta(days=1), seed=2)
    other = point(concurrency=1, requests=8, seed=3)
    assert [one.seed for one in newest([late, point(seed=1), other])] == [2, 3]


def test_the_table_has_units_and_no_nan():
    table = history_table([point(started_at=NOON + timedelta(days=1)), point(output_tokens=1, tpot_ms=None)])
    assert list(table["measured_at_utc"]) == ["2026-11-30 12:00:00", "2026-12-01 12:00:00"]
    assert list(table["tpot_ms_p50"]) == [None, 5.0]
    assert list(table["ttft_ms_p95"]) == [52.0, 52.0]
    assert list(history_table([]).columns) == list(table.columns)
