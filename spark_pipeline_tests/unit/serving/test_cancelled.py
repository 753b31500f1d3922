"""A Ctrl-C in a terminal reaches a step twice: the second one may not end what the first one began."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from spark_pipeline.cluster import stage as cluster
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.cluster.plan import Running, plan
from spark_pipeline.fleet.session import Session
from spark_pipeline.serving import stage as serving
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.doubles import ScriptedConnection, ScriptedHost
from spark_pipeline_tests.unit.cluster import samples


def a_generation() -> Generation:
    planned = plan(samples.target(), samples.facts(), Running(()), joined=None, others=(), last_number=0, run_id="r")
    assert planned.generation is not None
    return planned.generation


GENERATION = a_generation()


def interrupt(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGINT)
    return frozenset()


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the generations that were removed to the end."""
    seen: list[int] = []
    for name in ("write_generation", "join"):
        monkeypatch.setattr(cluster, name, lambda *_: None)
    monkeypatch.setattr(cluster.containers, "start", interrupt)
    monkeypatch.setattr(cluster.containers, "marks", lambda *_: frozenset())
    monkeypatch.setattr(cluster.containers, "hand_over", interrupt)
    monkeypatch.setattr(cluster.containers, "remove_generation", lambda _, generation: seen.append(generation.number))
    monkeypatch.setattr(serving.cluster, "ensure", lambda _: SimpleNamespace(generation=GENERATION))
    monkeypatch.setattr(serving, "forget", lambda _: None)
    return seen


@pytest.mark.parametrize("step", [serving.ensure, lambda session: cluster._start(session, GENERATION)])
def test_the_second_interrupt_comes_with_the_first_word_of_the_clean_up(removed: list[int], step: Any) -> None:
    said: list[str] = []

    def progress(line: str) -> None:
        said.append(line)
        if line.startswith("removing"):
            interrupt()

    project = Project.load(samples.ROOT)
    connection: Any = ScriptedConnection([ScriptedHost("head"), ScriptedHost("peer")])
    session = Session(project, project.deployment("qwen35_122b"), connection, progress, "r")

    with pytest.raises(KeyboardInterrupt):
        step(session)

    assert said[-1].startswith("removing")
    assert removed == [GENERATION.number]
