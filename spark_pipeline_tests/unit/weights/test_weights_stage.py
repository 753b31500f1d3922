"""The stage on a fleet of one local node: real hub, files and program. Two nodes, processes: lab/test_weights.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.errors import HubError, LeaseHeldError, RevisionNotFoundError, StateError
from spark_pipeline.fleet.session import Session
from spark_pipeline.lab.hub_faults import Fault
from spark_pipeline.weights import hub as hub_module
from spark_pipeline.weights import stage
from spark_pipeline.weights.record import read_record
from spark_pipeline_tests.unit.weights.conftest import local_project, open_here

FILES = {"config.json": b"{}", "model-1.bin": os.urandom(30_000), "model-2.bin": os.urandom(20_000)}
SIZE = sum(len(content) for content in FILES.values())


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def session(hub, tmp_path: Path, said: list[str]) -> Iterator[Session]:
    hub.publish(FILES)
    hub.forget()
    with open_here(local_project(tmp_path, hub), progress=said.append) as session:
        yield session


def test_the_first_run_fetches_proves_and_records(session, hub):
    result = stage.ensure(session)

    assert result.changed
    (head,) = result.nodes
    assert (head.downloaded_bytes, head.verified_files, head.verified_bytes) == (SIZE, 3, SIZE)
    record = read_record(session)
    assert record == result.record
    assert (record.files, record.size_bytes, record.revision, record.run_id) == (3, SIZE, "main", "run-1")
    assert record.directory.endswith(f"/models/{hub.repo}/{record.commit}")
    assert Path(record.marker).is_file()
    assert (Path(record.directory) / "model-1.bin").read_bytes() == FILES["model-1.bin"]


def test_a_repeat_asks_the_hub_once_fetches_nothing_reads_nothing_and_says_so(session, hub):
    first = stage.ensure(session)
    hub.forget()

    again = stage.ensure(replace(session, run_id="run-2"))

    assert not again.changed
    assert again.record == first.record
    assert again.nodes[0].seconds == 0
    assert len(hub.log()) == 1
    assert "head: every file is there, proven and unchanged since" in again.plan.reasons
    assert again.plan.commands == ()


def test_the_plan_says_it_all_and_does_nothing(session, hub, tmp_path):
    planned = stage.plan(session)

    assert planned.changes
    assert [command.argv[-1] for command in planned.commands] == ["verify", "download", "seal"]
    assert hub.file_requests() == []
    assert not (tmp_path / "models").exists()
    with pytest.raises(StateError, match="no weights are recorded"):
        read_record(session)


def test_the_exact_commit_wins_over_the_declared_branch_and_needs_no_hub_once_known(session, hub):
    old = stage.ensure(session).record.commit
    hub.publish({**FILES, "config.json": b'{"new": 1}'})

    kept = stage.ensure(session, revision=old)
    moved = stage.ensure(replace(session, run_id="run-2"))

    assert (kept.changed, kept.record.commit) == (False, old)
    assert moved.changed
    assert moved.record.commit != old
    hub.forget()
    assert not stage.ensure(session, revision=moved.record.commit).changed
    assert hub.log() == []


@pytest.mark.parametrize(("checks", "done"), [(0, ""), (1, "state"), (2, "files"), (3, "marker")])
def test_a_lost_lease_ends_the_run_before_its_next_change(session, hub, tmp_path, checks, done):
    left = iter(range(checks))

    def guard() -> None:
        if next(left, None) is None:
            raise LeaseHeldError("the lease of fleet here was lost")

    with pytest.raises(LeaseHeldError) if checks < 3 else nullcontext():
        stage.ensure(replace(session, guard=guard))

    models = tmp_path / "models"
    found = {
        "state": any(models.rglob(".spark_pipeline")),
        "files": any(models.rglob("model-1.bin")),
        "marker": any(models.rglob("complete.json")),
    }
    expected = list(found)[: list(found).index(done) + 1] if done else []
    assert [name for name, is_there in found.items() if is_there] == expected


def test_a_wrong_file_is_repaired_alone(session, hub):
    record = stage.ensure(session).record
    hub.forget()
    damaged = Path(record.directory) / "model-2.bin"
    damaged.write_bytes(b"x" * len(FILES["model-2.bin"]))

    result = stage.ensure(session)

    assert damaged.read_bytes() == FILES["model-2.bin"]
    assert [bad.path for bad in result.nodes[0].repaired] == ["model-2.bin"]
    assert [entry["path"].rpartition("/")[2] for entry in hub.file_requests()] == ["model-2.bin"]


def test_rehash_reads_everything_though_nothing_changed(session, hub):
    stage.ensure(session)
    hub.forget()

    result = stage.ensure(session, rehash=True)

    assert (result.nodes[0].verified_files, result.nodes[0].verified_bytes) == (3, SIZE)
    assert hub.file_requests() == []


def test_an_unknown_revision_ends_before_anything_is_touched(session, tmp_path):
    with pytest.raises(RevisionNotFoundError):
        stage.ensure(session, revision="nope")

    assert not (tmp_path / "models").exists()
    assert not session.state_dir.exists()


def test_a_download_that_failed_is_finished_by_the_next_run_with_the_missing_files_only(session, hub, tmp_path):
    hub.fault(Fault(kind="gated", path="model-2.bin"))
    with pytest.raises(Exception, match=r"refuses model-2\.bin"):
        stage.ensure(session)
    hub.fault()
    with pytest.raises(StateError):
        read_record(session)
    # Which of the others had arrived when the refusal ended the run differs from time to time.
    files = [path for path in (tmp_path / "models").rglob("*") if path.name in FILES]
    arrived = {path.name for path in files if path.read_bytes() == FILES[path.name]}
    hub.forget()

    stage.ensure(session)

    asked = {entry["path"].rpartition("/")[2] for entry in hub.file_requests()}
    assert asked == set(FILES) - arrived
    assert "model-2.bin" in asked


def test_a_refused_file_says_that_the_token_was_not_sent(session, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    monkeypatch.setattr(hub_module, "_may_have_a_token", lambda _: False)  # as for a hub on another machine, by http
    hub.fault(Fault(kind="gated", token="hf_very_secret"))

    with pytest.raises(HubError) as caught:
        stage.ensure(session)

    assert "HF_TOKEN is set, but was not sent" in caught.value.remedy


def test_the_token_shows_in_no_message_and_no_file(session, hub, said, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    hub.fault(Fault(kind="gated", token="hf_very_secret"))

    result = stage.ensure(session)

    assert "hf_very_secret" not in "\n".join([*said, repr(result)])
    everything = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "faults.json"]
    assert not any(b"hf_very_secret" in path.read_bytes() for path in everything)
