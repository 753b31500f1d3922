"""One run, one commit: the branch moves, the run does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_pipeline.errors import RevisionNotFoundError
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.weights import stage
from spark_pipeline.weights.manifest import read_manifest
from spark_pipeline.weights.resolution import resolution_path, resolve_for_run
from spark_pipeline_tests.unit.weights.conftest import local_project

OLD, NEW = {"model.bin": b"old"}, {"model.bin": b"new"}


@pytest.fixture
def run(hub, tmp_path: Path) -> Iterator[Callable[[str], Session]]:
    """A session of the run with this id, on a deployment whose branch main is at OLD."""
    hub.publish(OLD)
    hub.forget()
    project = local_project(tmp_path, hub)
    opened = []

    def make(run_id: str) -> Session:
        opened.append(open_session(project, "one", progress=lambda _: None, run_id=run_id))
        return opened[-1].__enter__()

    yield make
    for session in opened:
        session.__exit__(None, None, None)


def test_a_branch_that_moves_between_two_calls_of_one_run_means_the_first_commit_in_both(run, hub):
    first = resolve_for_run(run("run-1"))
    hub.publish(NEW)
    hub.forget()

    second = resolve_for_run(run("run-1"))

    assert second == first
    assert hub.log() == []


def test_another_run_asks_anew(run, hub):
    first = resolve_for_run(run("run-1"))
    moved = hub.publish(NEW)

    second = resolve_for_run(run("run-2"))

    assert second.commit == moved.commit != first.commit


def test_two_runs_at_once_keep_each_its_own_commit(run, hub):
    first = resolve_for_run(run("run-1"))
    hub.publish(NEW)
    second = resolve_for_run(run("run-2"))
    hub.forget()

    assert resolve_for_run(run("run-1")) == first
    # The stored manifest was the other run's: the hub is asked, but for the commit.
    assert [entry["path"].partition("?")[0] for entry in hub.log()] == [
        f"/api/models/{hub.repo}/revision/{first.commit}"
    ]
    assert resolve_for_run(run("run-2")) == second


def test_the_report_and_the_weights_of_one_run_are_of_one_commit_and_the_plan_still_asks(run, hub):
    session = run("run-1")
    reported = resolve_for_run(session)
    moved = hub.publish(NEW)

    planned = stage.plan(session)
    result = stage.ensure(session)

    assert result.record.commit == reported.commit
    assert moved.commit in "\n".join(planned.reasons)
    assert (Path(result.record.directory) / "model.bin").read_bytes() == b"old"


def test_the_manifest_is_stored_and_another_revision_in_the_same_run_is_another_question(run, hub):
    session = run("run-1")
    first = resolve_for_run(session)
    other = hub.publish(NEW, branch="next")

    assert read_manifest(session.state_dir) == first
    assert resolve_for_run(session, "next").commit == other.commit
    assert resolve_for_run(session, "next").commit == other.commit
    assert resolve_for_run(session).commit == first.commit
    assert resolve_for_run(session, other.commit) == other


def test_an_unknown_revision_leaves_nothing_behind(run):
    session = run("run-1")

    with pytest.raises(RevisionNotFoundError):
        resolve_for_run(session, "nope")

    assert not resolution_path(session).exists()
    assert not session.state_dir.exists()


def test_only_the_last_runs_are_remembered(run, hub):
    for number in range(40):
        resolve_for_run(run(f"run-{number}"))
    hub.forget()

    resolve_for_run(run("run-39"))
    assert hub.log() == []
    assert len(resolution_path(run("x")).read_text()) < 10_000
