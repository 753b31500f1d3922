"""What a model needs of each node, and what the nodes have: one rule for the report and for the cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_pipeline.cluster.memory import CEILING, RESERVE_BYTES, Demand, layouts, more_room
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.spec.fleet import Accelerator
from spark_pipeline_tests.unit.cluster import samples

GB = 1_000_000_000
SPARK = samples.facts()["head"]


def nodes(count: int, **changes: int) -> tuple[NodeFacts, ...]:
    return tuple(replace(SPARK, node=f"n{number}", **changes) for number in range(count))


def demand(gigabytes: int, **changes: object) -> Demand:
    return replace(Demand(Accelerator.NVIDIA, gigabytes * GB), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "gigabytes", "expected"),
    [
        (2, 60, [(1, True), (2, True)]),
        (2, 125, [(1, False), (2, True)]),
        (2, 250, [(1, False), (2, False), (4, True)]),
        (3, 250, [(1, False), (2, False), (3, True)]),
        (3, 500, [(1, False), (2, False), (3, False), (4, False), (8, True)]),
        (6, 500, [(1, False), (2, False), (4, False), (6, True)]),
    ],
)
def test_the_declared_number_of_nodes_is_always_among_the_layouts(
    count: int, gigabytes: int, expected: list[tuple[int, bool]]
) -> None:
    assert [(one.nodes, one.fits) for one in layouts(nodes(count), demand(gigabytes))] == expected


def test_the_tightest_node_decides_and_is_named() -> None:
    tight = (*nodes(1), replace(SPARK, node="tight", memory_available_bytes=40 * GB))
    two = layouts(tight, demand(125))[1]
    assert (two.node, two.fits) == ("tight", False)
    assert two.has_bytes == 40 * GB - RESERVE_BYTES


def test_a_declared_share_counts_instead_of_the_ceiling() -> None:
    (auto,) = layouts(nodes(1), demand(10))[:1]
    (half,) = layouts(nodes(1), demand(10, declared_share=0.5))[:1]
    (more,) = layouts(nodes(1), demand(10, declared_share=0.9))[:1]
    assert auto.has_bytes == SPARK.memory_available_bytes - RESERVE_BYTES < CEILING * SPARK.memory_total_bytes
    assert half.has_bytes == int(0.5 * SPARK.memory_total_bytes)
    assert auto.has_bytes < more.has_bytes <= SPARK.memory_available_bytes


def test_what_an_earlier_generation_holds_will_be_free() -> None:
    full = nodes(2, memory_available_bytes=4 * GB)
    assert not layouts(full, demand(125))[1].fits
    assert layouts(full, demand(125, occupied=True))[1].fits


def test_a_cache_that_is_larger_than_the_usual_working_room_counts() -> None:
    small = layouts(nodes(2), demand(100, cache_bytes=lambda ranks: GB))[1]
    large = layouts(nodes(2), demand(100, cache_bytes=lambda ranks: 40 * GB // ranks))[1]
    assert small.needs_bytes == layouts(nodes(2), demand(100))[1].needs_bytes
    assert large.needs_bytes == 50 * GB + 3 * 2**30 + 20 * GB


@pytest.mark.parametrize(
    ("gigabytes", "changes", "words"),
    [
        (250, {}, "`parallel: {tensor: 4}` is the smallest layout that fits"),
        (125, {"memory_available_bytes": 30 * GB}, "free memory there"),
        (99_000, {}, "no layout of up to 64 such nodes fits"),
    ],
)
def test_what_helps_is_said(gigabytes: int, changes: dict[str, int], words: str) -> None:
    assert words in more_room(nodes(2, **changes), demand(gigabytes))
