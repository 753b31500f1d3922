"""The virtual fleet for tests: one that everybody shares, and a second one that may be broken and taken down."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ipaddress import IPv4Network

import pytest

from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.locks import only_one
from spark_pipeline.lab.packages import ensure_packages
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import LabPlan


def say(line: str) -> None:
    """Progress that pytest shows with a failure."""
    print(line, file=sys.stderr)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The shared lab with two nodes, up; taken down at the end only if it was not up before.

    A test that breaks something of it puts it back.
    """
    ensure_packages(say)
    shared = Lab()
    was_up = bool(shared.status().nodes)
    shared.up(2, say)
    yield shared
    if not was_up:
        shared.down(progress=say)


@pytest.fixture(scope="session")
def second_lab_definition() -> Lab:
    """Another lab beside the shared one: own names, own management network, own disks; not started."""
    return Lab(LabPlan(prefix="labt", management=IPv4Network("10.78.0.0/24")), LabPaths.beside("labt"))


@pytest.fixture(scope="module")
def second_lab(second_lab_definition: Lab) -> Iterator[Lab]:
    """The second lab, up, for tests that kill its parts or take it down; removed at the end, cache and all."""
    ensure_packages(say)
    with only_one(second_lab_definition.paths.cache / "second_lab.lock", say, what="the second lab"):
        second_lab_definition.down(progress=say)
        second_lab_definition.up(2, say)
        yield second_lab_definition
        second_lab_definition.down(purge=True, progress=say)
