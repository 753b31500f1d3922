"""The stage as a whole against scripted machines: what is kept, repeated, said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from spark_pipeline.benchmark.history import append, read
from spark_pipeline.benchmark.stage import ensure, plan
from spark_pipeline.errors import BenchmarkError, StateError
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.session import Session
from spark_pipeline.serving.record import ServingRecord, write_record
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.doubles import ScriptedConnection, ScriptedHost
from spark_pipeline_tests.unit.benchmark.samples import container, endpoint, generation, native, point

EXEC = ("docker", "exec", "-w", "/", "sp-tiny-g3-r0")


@dataclass
class Stage:
    """Deployment `tiny` of the project's own declarations, its records in a directory of the test's."""

    root: Path
    head: ScriptedHost = field(default_factory=lambda: ScriptedHost("head"))
    peer: ScriptedHost = field(default_factory=lambda: ScriptedHost("peer"))
    said: list[str] = field(default_factory=list)

    @property
    def session(self) -> Session:
        declared = Project.load(Path(__file__).resolve().parents[3])
        project = Project(self.root, declared.fleets, declared.deployments, declared.profiles)
        connection = cast(FleetConnection, ScriptedConnection([self.head, self.peer]))
        return Session(project, project.deployment("tiny"), connection, self.said.append, "run-1")

    @property
    def history(self) -> Path:
        return self.root / "data" / "benchmarks" / "tiny.jsonl"

    def serves(self) -> None:
        record = ServingRecord(
            generation=generation(), url="http://10.77.0.10:8000", model_id="tiny", ready_seconds=1.0,
            container_ids=("0" * 64, "1" * 64), run_id="run-1",
        )  # fmt: skip
        write_record(self.session, record)

    def answers(self, finished: Sequence[float] = ()) -> None:
        """Every container runs. `finished`: requests finished as the endpoint says, one for each time it is asked."""
        self.head.on("docker", "container", "inspect", ..., stdout=container(0), times=None)
        self.peer.on("docker", "container", "inspect", ..., stdout=container(1), times=None)
        probe = ("docker", "exec", "-i", ..., "python3", "-", "8000")
        for count in finished:
            self.head.on(*probe, stdout=endpoint(finished=count))
        if not finished:
            self.head.on(*probe, stdout=endpoint(), times=None)
        self.head.on(*EXEC, "rm", ..., times=None)
        self.head.on("sh", "-c", ..., stdout="engine's last line", times=None)

    def loads(self, *results: str) -> None:
        for result in results:
            self.head.on(*EXEC, "env", ..., "vllm", "bench", "serve", ...)
            self.head.on(*EXEC, "cat", ..., stdout=result)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


WARM_UP = native(completed=8, total_output_tokens=128)
ONE = native(completed=8, total_output_tokens=128)
EIGHT = native(completed=32, total_output_tokens=512)


def test_each_point_lands_in_the_history_with_the_tools_own_file_beside_it(stage: Stage):
    stage.serves()
    stage.answers(finished=(5, 13, 21, 53))
    stage.loads(WARM_UP, ONE, EIGHT)
    result = ensure(stage.session)
    stage.head.finish()
    assert (result.changed, result.measured) == (True, 2)
    assert [one.concurrency for one in result.points] == [1, 8]
    assert [one.other_requests for one in result.points] == [0, 0]
    assert read(stage.history) == result.points
    assert [(stage.history.parent / one.native_file).read_text() for one in result.points] == [ONE, EIGHT]
    assert any("point 2 of 2" in line for line in stage.said)


def test_a_second_time_asks_no_machine_and_says_so(stage: Stage):
    stage.serves()
    for concurrency, requests in ((1, 8), (8, 32)):
        append(stage.history, point(concurrency=concurrency, requests=requests))
    result = ensure(stage.session)
    assert (result.changed, result.measured) == (False, 0)
    assert [one.concurrency for one in result.points] == [1, 8]
    assert stage.head.commands == []
    assert "all 2 points were measured" in stage.said[-1]


def test_force_measures_again_and_shows_the_newest(stage: Stage):
    stage.serves()
    for concurrency, requests in ((1, 8), (8, 32)):
        append(stage.history, point(concurrency=concurrency, requests=requests))
    stage.answers()
    stage.loads(WARM_UP, ONE, EIGHT)
    result = ensure(stage.session, force=True)
    assert (result.changed, result.measured, len(read(stage.history))) == (True, 2, 4)
    assert result.points == read(stage.history)[2:]


def test_the_points_proven_before_a_failure_are_kept(stage: Stage):
    stage.serves()
    stage.answers()
    stage.loads(WARM_UP, ONE, native(completed=30, failed=2))
    with pytest.raises(BenchmarkError, match="requests failed"):
        ensure(stage.session)
    assert [one.concurrency for one in read(stage.history)] == [1]


def test_a_warm_up_that_fails_stops_before_any_number(stage: Stage):
    stage.serves()
    stage.answers()
    stage.loads(native(completed=0, failed=8))
    with pytest.raises(BenchmarkError):
        ensure(stage.session)
    assert read(stage.history) == ()


def test_nothing_is_measured_where_nothing_serves(stage: Stage):
    with pytest.raises(StateError) as refused:
        ensure(stage.session)
    assert "tiny/serving_endpoint" in refused.value.remedy
    planned = plan(stage.session)
    assert planned.changes
    assert "2 points of 1 profiles" in planned.reasons[0]


def test_planning_asks_no_machine_and_prints_the_commands(stage: Stage):
    stage.serves()
    planned = plan(stage.session)
    assert planned.changes
    assert [command.argv[4] for command in planned.commands] == ["sp-tiny-g3-r0"] * 3
    assert stage.head.commands == []


def test_requests_of_others_and_cached_prompts_are_said(stage: Stage):
    stage.serves()
    append(stage.history, point(concurrency=8, requests=32))
    stage.head.on("docker", "container", "inspect", ..., stdout=container(0), times=None)
    stage.peer.on("docker", "container", "inspect", ..., stdout=container(1), times=None)
    probe = ("docker", "exec", "-i", ..., "python3", "-", "8000")
    for finished, looked_up, cached in ((0, 0, 0), (1, 64, 0), (14, 576, 256)):
        answer = endpoint(finished=finished, looked_up=looked_up, cached=cached)
        stage.head.on(*probe, stdout=answer)
    stage.head.on(*EXEC, "rm", ..., times=None)
    stage.loads(native(completed=1, total_output_tokens=16), ONE)
    ensure(stage.session)
    assert "beside 5 requests of others" in stage.said[-1]
    assert "50 % of the prompts came from the prefix cache" in stage.said[-1]
