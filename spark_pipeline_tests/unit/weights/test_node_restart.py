"""What was proven before a machine was switched off is read again once: a power cut loses bytes, not time stamps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node import proofs
from spark_pipeline.weights.plan import plan

SHARD = os.urandom(50_000)
FILES = {"config.json": b"{}", "model.bin": SHARD}


@pytest.fixture
def restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A boot id that a test changes."""
    place = tmp_path / "boot_id"
    boots = iter(range(1, 100))

    def do() -> None:
        place.write_text(f"boot-{next(boots)}\n")

    do()
    monkeypatch.setattr(proofs, "BOOT_ID", place)
    return do


def test_after_a_restart_every_file_is_read_again_once(node_with, restart):
    node = node_with(FILES)
    node.download()
    node.do("seal")
    restart()

    before = node.do("inspect")
    read = node.do("verify")
    node.do("seal")
    after = node.do("inspect")

    assert before.unproven == before.before_restart == ("config.json", "model.bin")
    assert (read.hashed_files, read.hashed_bytes) == (2, len(SHARD) + 2)
    assert (after.unproven, after.before_restart, after.sealed) == ((), (), node.manifest.sha256)


def test_the_marker_does_not_outlive_the_boot_it_was_written_in(node_with, restart):
    node = node_with(FILES)
    node.download()
    node.do("seal")
    restart()

    assert node.marker.exists()
    assert node.do("inspect").sealed == ""
    node.do("verify")
    assert node.do("inspect").sealed == ""
    assert node.do("seal").sealed == node.manifest.sha256


def test_bytes_that_went_lost_with_the_power_are_found_though_all_times_are_the_old_ones(
    node_with, restart, monkeypatch: pytest.MonkeyPatch
):
    node = node_with(FILES)
    node.download()
    path = node.directory / "model.bin"
    known = path.stat()
    path.write_bytes(bytes(len(SHARD)))  # zeros, as a file system leaves what never reached the disk
    _with_old_times(monkeypatch, path, known)
    assert node.do("inspect").unproven == ()

    restart()
    report = node.do("verify")

    assert [bad.path for bad in report.set_aside] == ["model.bin"]


def test_reading_that_was_interrupted_goes_on_with_the_rest(node_with, restart):
    node = node_with(FILES)
    node.download()
    restart()
    first = Manifest(repo=node.manifest.repo, commit=node.manifest.commit, files=node.manifest.files[:1])
    assert replace(node, manifest=first).do("verify").hashed_files == 1

    assert node.do("inspect").before_restart == ("model.bin",)


def test_a_file_that_also_changed_is_no_victim_of_the_restart(node_with, restart):
    node = node_with(FILES)
    node.download()
    restart()
    (node.directory / "model.bin").write_bytes(SHARD)

    report = node.do("inspect")

    assert (report.unproven, report.before_restart) == (("config.json", "model.bin"), ("config.json",))


def test_notes_without_a_boot_prove_nothing(node_with, restart):
    """As the program wrote them before it knew boots."""
    import json

    node = node_with(FILES)
    node.download()
    notes = node.directory / ".spark_pipeline" / "proofs.json"
    notes.write_text(json.dumps({path: known[:-1] for path, known in json.loads(notes.read_text()).items()}))

    assert (node.do("inspect").unproven, node.do("inspect").before_restart) == (("config.json", "model.bin"), ())


def test_the_plan_says_which_files_are_read_because_of_a_restart(node_with, restart):
    node = node_with(FILES)
    node.download()
    restart()
    report = node.do("inspect")

    planned = plan(node.manifest, str(node.directory), {"head": report})
    mixed = plan(node.manifest, str(node.directory), {"head": replace(report, before_restart=("config.json",))})

    assert planned.reasons()[1:] == (
        "head: 2 files (50.0 kB) there, but head was restarted since they were proven: read",
    )
    assert mixed.reasons()[1:] == (
        "head: config.json (2 B) there, but head was restarted since they were proven: read",
        "head: model.bin (50.0 kB) there but not proven since they last changed: read",
    )


def _with_old_times(monkeypatch: pytest.MonkeyPatch, path: Path, known: os.stat_result) -> None:
    """Nobody can set a ctime back; what a crash does is played by what the program is told."""
    real = os.lstat

    def lstat(asked, **more):
        return known if Path(asked) == path else real(asked, **more)

    monkeypatch.setattr(os, "lstat", lstat)
