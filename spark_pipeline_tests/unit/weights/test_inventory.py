"""What lies on a node, who needs it, and what goes: real files and the real program; containers are made up."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_pipeline.errors import (
    DockerUnavailableError,
    HubError,
    LeaseHeldError,
    NoRoomError,
    StateError,
    WeightsError,
)
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.session import Session
from spark_pipeline.lab.hub_faults import Fault
from spark_pipeline.spec.fleet import Ssh
from spark_pipeline.weights import inventory, stage
from spark_pipeline.weights.inventory import Revision, list_revisions, prune
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.inventory import inventory as inventory_of
from spark_pipeline.weights.node.messages import AbsentFile, Report
from spark_pipeline_tests.unit.weights.conftest import local_project, open_here

SAME = os.urandom(20_000)
OLD = {"config.json": b"{}", "model-1.bin": os.urandom(30_000), "same.bin": SAME}
NEW = {"config.json": b"{}", "model-1.bin": os.urandom(40_000), "same.bin": SAME}


@pytest.fixture
def session(hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """One local node that holds two revisions; the second one is what the deployment has now."""
    monkeypatch.setattr(inventory, "_mounted", lambda host: {})
    project = local_project(tmp_path, hub)
    for run, files in (("run-1", OLD), ("run-2", NEW)):
        hub.publish(files)
        with open_here(project, run_id=run) as session:
            stage.ensure(session)
    with open_here(project, run_id="run-3") as session:
        yield session


def revisions(session: Session) -> dict[bool, Revision]:
    """By whether it is needed; there must be one of each at most."""
    return {bool(one.needed_by): one for one in list_revisions(session.project, session.fleet, session.connection)}


def directory(session: Session, revision: Revision) -> Path:
    return Path(session.fleet.weights_dir) / revision.repo / revision.commit


def test_every_revision_is_listed_with_its_size_and_who_needs_it(session: Session) -> None:
    found = revisions(session)
    new, old = found[True], found[False]
    assert (new.needed_by, old.needed_by) == (("one: brought here last",), ())
    assert new.complete
    assert old.complete
    assert new.files == 3
    assert new.size_bytes > old.size_bytes >= 50_000


def test_what_a_revision_shares_with_another_is_not_counted_as_freed(session: Session) -> None:
    found = revisions(session)
    new, old = found[True], found[False]
    assert new.shared_bytes == old.shared_bytes >= len(SAME)
    assert 30_000 <= old.frees_bytes < 50_000
    prune(session.fleet, session.connection, [old], print)
    assert revisions(session)[True].shared_bytes == 0


def test_a_file_under_several_names_in_one_revision_counts_once_and_goes_with_it(session: Session) -> None:
    before = revisions(session)[False]
    place = directory(session, before)
    for name in ("one.bin", "two.bin"):
        (place / name).hardlink_to(place / "model-1.bin")
    after = revisions(session)[False]
    assert after.files == before.files + 2
    assert (after.size_bytes, after.shared_bytes) == (before.size_bytes, before.shared_bytes)


def test_files_that_come_and_go_while_they_are_counted_hinder_nobody(session: Session) -> None:
    part = directory(session, revisions(session)[True]) / ".spark_pipeline" / "part"
    part.mkdir(exist_ok=True)
    ended = threading.Event()

    def download() -> None:
        while not ended.is_set():
            (part / "model-1.bin").touch()
            (part / "model-1.bin").rename(part / "done")
            (part / "done").unlink()

    at_work = threading.Thread(target=download)
    at_work.start()
    try:
        found = [inventory_of(Path(session.fleet.weights_dir)) for _ in range(200)]
    finally:
        ended.set()
        at_work.join()
    assert {len(one.revisions) for one in found} == {2}


def test_what_nobody_needs_goes_and_the_rest_stays(session: Session) -> None:
    old = revisions(session)[False]
    prune(session.fleet, session.connection, [old], print)
    assert not directory(session, old).exists()
    assert revisions(session).keys() == {True}
    assert not stage.ensure(session).changed


def test_what_served_well_last_stays(session: Session) -> None:
    old = revisions(session)[False]
    record = {"generation": {"repo": old.repo, "commit": old.commit, "number": 3}, "url": "http://x"}
    (session.state_dir / "last_good.json").write_text(json.dumps(record))
    found = list_revisions(session.project, session.fleet, session.connection)
    assert {one.commit: one.needed_by for one in found}[old.commit] == ("one: was good last",)
    with pytest.raises(ValueError, match="is needed"):
        prune(session.fleet, session.connection, found, print)
    assert directory(session, old).exists()


def test_what_a_container_was_made_for_stays(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    old = revisions(session)[False]
    monkeypatch.setattr(inventory, "_mounted", lambda host: {old.commit: "container sp-other-g1-r0"})
    found = list_revisions(session.project, session.fleet, session.connection)
    assert {one.commit: one.needed_by for one in found}[old.commit] == ("container sp-other-g1-r0",)


def test_what_a_run_was_bringing_when_it_ended_early_stays(hub, session: Session) -> None:
    manifest = hub.publish({**NEW, "model-2.bin": os.urandom(10_000)})
    hub.fault(Fault(kind="gated", path="model-2.bin"))
    with pytest.raises(HubError):
        stage.ensure(session)
    found = {one.commit: one for one in list_revisions(session.project, session.fleet, session.connection)}
    assert not found[manifest.commit].complete
    assert found[manifest.commit].needed_by == ("one: resolved last",)


def test_what_a_deployment_of_another_fleet_over_the_same_machine_needs_stays(session: Session) -> None:
    there = session.fleet.model_copy(update={"name": "there"})
    project = replace(session.project, fleets={**session.project.fleets, "there": there})
    with FleetConnection(there, project.known_hosts) as connection:
        found = list_revisions(project, there, connection)
    assert revisions(session)[True].commit in {one.commit for one in found if one.needed_by}


def test_a_lease_that_was_lost_ends_the_removal(session: Session) -> None:
    old = revisions(session)[False]

    def guard() -> None:
        raise LeaseHeldError("the lease of fleet here was lost")

    with pytest.raises(LeaseHeldError):
        prune(session.fleet, session.connection, [old], print, guard)
    assert directory(session, old).exists()


def test_a_record_that_cannot_be_read_makes_nothing_unneeded(session: Session) -> None:
    (session.state_dir / "last_good.json").write_text("{}")
    with pytest.raises(StateError, match="nothing can be called unneeded"):
        list_revisions(session.project, session.fleet, session.connection)


def test_a_directory_that_is_not_ours_is_neither_listed_nor_removed(session: Session) -> None:
    old = revisions(session)[False]
    shutil.rmtree(directory(session, old) / ".spark_pipeline")
    assert revisions(session).keys() == {True}
    with pytest.raises(WeightsError, match="was not made by spark_pipeline"):
        prune(session.fleet, session.connection, [old], print)
    assert (directory(session, old) / "model-1.bin").exists()


def test_a_revision_that_a_run_works_on_stays(session: Session) -> None:
    old = revisions(session)[False]
    with (directory(session, old) / ".spark_pipeline" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WeightsError, match="another run works on this revision"):
            prune(session.fleet, session.connection, [old], print)
    assert directory(session, old).exists()


def test_a_removal_that_was_interrupted_is_finished_by_the_next(session: Session) -> None:
    old = revisions(session)[False]
    place = directory(session, old)
    place.rename(place.with_name(f".spark_pipeline-going-{old.commit}"))
    again = revisions(session)[False]
    assert again.commit == old.commit
    prune(session.fleet, session.connection, [again], print)
    assert [path.name for path in place.parent.iterdir()] == [revisions(session)[True].commit]


def test_without_room_it_is_said_what_could_go(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    old = revisions(session)[False]
    error = no_room(session, monkeypatch)
    assert "spark-pipeline weights prune here" in error.remedy
    assert f"head: {old.repo} at {old.commit[:12]}" in error.remedy


def test_without_room_what_was_set_aside_in_a_needed_revision_is_named_too(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = revisions(session)[True]
    bad = directory(session, new) / ".spark_pipeline" / "bad"
    bad.mkdir()
    (bad / "model-1.bin").write_bytes(os.urandom(50_000))
    assert new.set_aside_bytes == 0
    assert revisions(session)[True].set_aside_bytes >= 50_000
    assert f"head: {bad}, 5" in no_room(session, monkeypatch).remedy


def test_without_room_that_is_what_is_said_though_docker_does_not_answer(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_: Host) -> dict[str, str]:
        raise DockerUnavailableError("Docker does not run", node="head")

    monkeypatch.setattr(inventory, "_mounted", unavailable)
    error = no_room(session, monkeypatch)
    assert error.what == "lab/weights does not fit"
    assert "free some room" in error.remedy


def test_only_the_nodes_without_room_are_asked_what_could_go(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    off = session.fleet.head.model_copy(update={"name": "off", "local": False, "ssh": Ssh(host="127.0.0.9", user="x")})
    fleet = session.fleet.model_copy(update={"nodes": (*session.fleet.nodes, off)})
    project = replace(session.project, fleets={"here": fleet})
    with FleetConnection(fleet, project.known_hosts) as connection:
        error = no_room(replace(session, project=project, connection=connection), monkeypatch)
    assert "spark-pipeline weights prune here" in error.remedy


def no_room(session: Session, monkeypatch: pytest.MonkeyPatch) -> NoRoomError:
    """What is said when the head lacks everything and has room for nothing; any other node has all and room."""

    def observe(_: Session, manifest: Manifest, **__: Any) -> dict[str, Report]:
        absent = tuple(AbsentFile(file.path, 0) for file in manifest.files)
        full = {node.name: Report(free_bytes=10**12, sealed=manifest.sha256) for node in session.fleet.nodes}
        return {**full, "head": Report(free_bytes=0, absent=absent)}

    monkeypatch.setattr(stage, "observe", observe)
    with pytest.raises(NoRoomError) as caught:
        stage.plan(session)
    return caught.value
