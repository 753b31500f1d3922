"""What long work says of itself, on a clock that goes only when a test says so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from spark_pipeline.fleet import progress
from spark_pipeline.fleet.progress import Meter, human_bytes, human_seconds

MB, GB = 10**6, 10**9


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_line_tells_how_much_how_fast_and_how_long_still(clock: Clock, said: list[str]) -> None:
    meter = Meter("[peer] copying lab/tiny", 4800 * MB, said.append)
    clock.now += 6
    meter.set(1200 * MB)
    assert said == ["[peer] copying lab/tiny: 1.2 GB of 4.8 GB (25 %), 200.0 MB/s, 18 s left"]


def test_many_small_steps_are_a_line_every_five_seconds_and_not_a_line_each(clock: Clock, said: list[str]) -> None:
    meter = Meter("reading", 200 * MB, said.append)
    for _ in range(100):  # twenty seconds
        clock.now += 0.2
        meter.add(2 * MB)
    shares = [line.split("(")[1].split(")")[0] for line in said]
    assert len(said) in (3, 4)  # a fifth of a second is no binary number
    assert all(line.endswith(" left") and "10.0 MB/s" in line for line in said)
    assert shares[0] in ("25 %", "26 %")


def test_the_interval_is_counted_from_the_last_line(clock: Clock, said: list[str]) -> None:
    meter = Meter("reading", 100, said.append, every_seconds=8)
    for seconds, lines in ((7, 0), (1, 1), (7, 1), (1, 2), (60, 3), (1, 3)):
        clock.now += seconds
        meter.set(50)
        assert len(said) == lines


def test_nothing_is_said_before_the_first_interval_is_over_but_the_last_word_may_be_asked_for(
    clock: Clock, said: list[str]
) -> None:
    meter = Meter("reading", 3 * GB, said.append)
    clock.now += 4
    meter.set(3 * GB)
    assert said == []
    assert meter.line() == "reading: 3.0 GB of 3.0 GB (100 %), 750.0 MB/s, 0.0 s left"


def test_without_a_byte_no_time_is_promised(clock: Clock, said: list[str]) -> None:
    meter = Meter("reading", 3 * GB, said.append)
    clock.now += 10
    meter.set(0)
    assert said == ["reading: 0 B of 3.0 GB (0 %), 0 B/s"]


def test_more_bytes_than_expected_leave_no_time_and_not_less_than_none(clock: Clock, said: list[str]) -> None:
    meter = Meter("reading", 100 * MB, said.append)
    clock.now += 10
    meter.set(150 * MB)
    assert said[0].endswith("(150 %), 15.0 MB/s, 0.0 s left")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.5 kB"), (118 * GB, "118.0 GB"), (2500 * GB, "2.50 TB")],
)
def test_bytes_in_decimal_units(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.5, "9.5 s"), (42, "42 s"), (75, "1 min 15 s"), (7500, "2 h 05 min")]
)
def test_seconds_as_a_person_says_them(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text
