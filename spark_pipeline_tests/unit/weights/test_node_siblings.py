"""A new revision of a model that is there: only what is new in it is fetched. Real hub, real files."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.errors import WeightsError
from spark_pipeline.weights.node import proofs, siblings
from spark_pipeline.weights.node.messages import LinkableFile, Report
from spark_pipeline.weights.node_program import remove_revision
from spark_pipeline.weights.plan import plan

OLD = {
    "config.json": b'{"v": 1}',
    "a.bin": os.urandom(70_000),
    "b.bin": os.urandom(50_000),
    "c.bin": os.urandom(30_000),
}
NEW = {**OLD, "config.json": b'{"v": 2}', "c.bin": os.urandom(30_000)}
SHARED = ("a.bin", "b.bin")


@pytest.fixture
def old(node_with):
    """A node that holds the old revision, proven."""
    node = node_with(OLD)
    node.download()
    node.do("seal")
    return node


@pytest.fixture
def new(old, hub):
    """The same node, that shall have the new revision."""
    manifest = hub.publish(NEW)
    hub.forget()
    return replace(old, manifest=manifest)


def fetched(hub) -> set[str]:
    return {entry["path"].rpartition("/")[2] for entry in hub.file_requests()}


def complete(node) -> Report:
    node.do("verify")
    node.download()
    return node.do("seal")


def test_only_what_is_new_is_fetched_and_both_revisions_are_proven(old, new, hub):
    complete(new)

    assert fetched(hub) == {"config.json", "c.bin"}
    assert hub.sent_bytes() == len(NEW["config.json"]) + len(NEW["c.bin"])
    for node, files in ((old, OLD), (new, NEW)):
        assert {path: (node.directory / path).read_bytes() for path in files} == files
        report = node.do("inspect")
        assert (report.unproven, report.sealed) == ((), node.manifest.sha256)
    assert all((old.directory / path).stat().st_ino == (new.directory / path).stat().st_ino for path in SHARED)


def test_looking_says_what_will_be_linked_and_links_nothing(old, new):
    report = new.do("inspect")

    commit = old.manifest.commit
    assert report.linkable == tuple(LinkableFile(path, commit, read_first=False) for path in SHARED)
    assert len(report.absent) == 4
    assert not new.directory.exists()


def test_the_plan_counts_no_byte_and_no_room_for_what_is_linked(old, new):
    report = replace(new.do("inspect"), free_bytes=50_000)

    planned = plan(new.manifest, str(new.directory), {"head": report})

    assert [file.path for file in planned.head.bring] == ["c.bin", "config.json"]
    assert planned.head.bring_bytes == len(NEW["config.json"]) + len(NEW["c.bin"])
    assert planned.reasons()[1:3] == (
        f"head: 2 files (120.0 kB) are those of revision {old.manifest.commit[:12]}: linked",
        "head: 2 files missing: download from the hub 30.0 kB (38.5 kB of 50.0 kB free)",
    )


def test_a_file_may_have_another_name_there(old, hub):
    manifest = hub.publish({"moved/renamed.bin": OLD["a.bin"]})
    hub.forget()
    node = replace(old, manifest=manifest)

    assert node.do("verify").absent == ()
    assert (node.directory / "moved" / "renamed.bin").read_bytes() == OLD["a.bin"]
    assert node.do("seal").sealed == manifest.sha256
    assert old.do("inspect").unproven == ()


def test_the_same_bytes_under_two_names_are_linked_twice_and_proven(old, hub):
    node = replace(old, manifest=hub.publish({"x.bin": OLD["a.bin"], "y.bin": OLD["a.bin"], "z.bin": OLD["a.bin"]}))

    report = node.do("verify")

    assert (report.absent, report.unproven, report.linked_files) == ((), (), 3)
    assert old.do("inspect").unproven == ()


def test_what_is_not_proven_there_at_this_moment_is_fetched(old, new, hub):
    touched = old.directory / "a.bin"
    touched.write_bytes(b"x" * len(OLD["a.bin"]))

    assert [file.path for file in new.do("inspect").linkable] == ["b.bin"]
    complete(new)

    assert fetched(hub) == {"config.json", "c.bin", "a.bin"}
    assert (new.directory / "a.bin").read_bytes() == NEW["a.bin"]
    assert touched.read_bytes() == b"x" * len(OLD["a.bin"])


def test_what_was_proven_before_a_restart_is_read_first_and_linked_only_when_right(
    old, new, hub, tmp_path, monkeypatch
):
    boot = tmp_path / "boot_id"
    boot.write_text("another")
    monkeypatch.setattr(proofs, "BOOT_ID", boot)
    _spoil_unseen(old, "a.bin")

    assert [(file.path, file.read_first) for file in new.do("inspect").linkable] == [("a.bin", True), ("b.bin", True)]
    report = new.do("verify")

    assert (report.linked_files, report.hashed_bytes) == (1, len(OLD["a.bin"]) + len(OLD["b.bin"]))
    assert [file.path for file in report.absent] == ["a.bin", "c.bin", "config.json"]
    complete(new)
    assert fetched(hub) == {"config.json", "c.bin", "a.bin"}
    assert "b.bin" not in old.do("inspect").unproven


def test_on_demand_a_sibling_is_not_believed_either(old, new):
    report = new.do("verify", rehash=True)

    assert (report.linked_files, report.hashed_bytes) == (2, len(OLD["a.bin"]) + len(OLD["b.bin"]))


def test_where_no_link_can_be_made_the_files_are_fetched(old, new, hub, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)

    complete(new)

    assert fetched(hub) == set(NEW)
    assert new.do("inspect").sealed == new.manifest.sha256


def test_a_revision_that_a_run_works_on_is_left_alone(old, new, hub):
    with (old.directory / ".spark_pipeline" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        complete(new)

    assert fetched(hub) == set(NEW)
    assert old.do("inspect").unproven == ()


def test_a_third_revision_leaves_the_first_two_proven(old, new, hub):
    complete(new)
    third = replace(old, manifest=hub.publish({**OLD, "config.json": b'{"v": 3}'}))

    complete(third)

    for node in (old, new, third):
        assert (node.do("inspect").unproven, node.do("inspect").sealed) == ((), node.manifest.sha256)


def test_a_repeat_finds_nothing_to_do(old, new):
    complete(new)

    planned = plan(new.manifest, str(new.directory), {"head": new.do("inspect")})

    assert not planned.changes


def test_removing_one_revision_leaves_the_other_whole_and_proven(old, new):
    complete(new)

    remove_revision(old.host, str(old.weights_dir), old.manifest.repo, old.manifest.commit)

    assert not old.directory.exists()
    assert {path: (new.directory / path).read_bytes() for path in NEW} == NEW
    assert (new.do("inspect").unproven, new.do("inspect").sealed) == ((), new.manifest.sha256)


def test_a_revision_is_not_removed_while_a_run_works_on_one_that_shares_files(old, new):
    complete(new)
    with (new.directory / ".spark_pipeline" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WeightsError, match="another run works on this revision") as caught:
            remove_revision(old.host, str(old.weights_dir), old.manifest.repo, old.manifest.commit)
    assert str(new.directory) in caught.value.observed
    remove_revision(old.host, str(old.weights_dir), old.manifest.repo, old.manifest.commit)
    assert new.do("inspect").unproven == ()


def test_a_byte_that_somebody_writes_into_a_shared_file_ends_both_proofs(old, new, hub):
    complete(new)
    with (new.directory / "a.bin").open("r+b") as stream:
        stream.write(b"\0\0\0\0")
    hub.forget()

    assert (old.do("inspect").unproven, new.do("inspect").unproven) == (("a.bin",), ("a.bin",))
    complete(new)
    assert fetched(hub) == {"a.bin"}
    assert (new.directory / "a.bin").read_bytes() == NEW["a.bin"]
    # The old one's file is another one now, and still wrong: that one's next run finds it and links the good one.
    assert old.do("verify").linked_files == 1
    assert (old.directory / "a.bin").read_bytes() == OLD["a.bin"]


def test_notes_of_a_sibling_are_no_way_out_of_its_directory(old, new):
    notes = old.directory / ".spark_pipeline" / "proofs.json"
    known = json.loads(notes.read_text())
    secret = old.weights_dir / "secret"
    secret.write_bytes(OLD["a.bin"])
    status = secret.stat()
    del known["b.bin"]
    known["../../../secret"] = [
        *known.pop("a.bin")[:2],
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        proofs.boot_id(),
    ]
    notes.write_text(json.dumps(known))

    assert new.do("inspect").linkable == ()
    assert new.do("verify").linked_files == 0


def test_what_lies_beside_and_is_not_ours_is_no_sibling(old, tmp_path: Path):
    (old.directory.parent / ("e" * 40)).mkdir()
    (old.directory.parent / "notes").mkdir()
    (old.directory.parent / ("f" * 40)).symlink_to(old.directory)

    assert siblings.revisions_beside(old.directory) == ()
    assert siblings.revisions_beside(old.directory.with_name("d" * 40)) == (old.directory,)


def _spoil_unseen(node, path: str) -> None:
    """Wrong bytes behind a note that says that the file is as it was: what a power cut leaves."""
    place = node.directory / path
    place.write_bytes(bytes(place.stat().st_size))
    status = place.stat()
    notes = node.directory / ".spark_pipeline" / "proofs.json"
    known = json.loads(notes.read_text())
    known[path][3:6] = [status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    notes.write_text(json.dumps(known))
