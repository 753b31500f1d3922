"""What a disk refuses is never taken for a connection that broke, and what it holds is never guessed."""

from __future__ import annotations

import errno
import os

import pytest

from spark_pipeline.errors import WeightsError
from spark_pipeline.weights.node import part
from spark_pipeline.weights.node.messages import Problem

BIG = os.urandom(400_000)
FILES = {"model.bin": BIG}


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "WINDOW_BYTES", 50_000)


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EIO, "see to "), (errno.EDQUOT, "free some room"), (errno.ENOSPC, "free some room")]
)
def test_a_sync_that_fails_ends_the_run_and_the_next_one_reads_what_the_disk_kept(
    node_with, hub, monkeypatch: pytest.MonkeyPatch, call: str, number: int, remedy: str
):
    """As Linux does it: the pages are lost, the error is told once, and from then on all passes for well."""
    node = node_with(FILES)
    path = node.directory / ".spark_pipeline" / "part" / "model.bin"
    real = getattr(os, call)
    failed: list[int] = []

    def lose(descriptor: int) -> None:
        if not failed and path.exists() and path.stat().st_size > 0:
            failed.append(descriptor)
            with path.open("r+b") as stream:
                stream.write(bytes(1000))
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, call, lose)

    with pytest.raises(WeightsError, match=r"model\.bin cannot be written") as caught:
        node.download()
    assert os.strerror(number) in caught.value.observed
    assert remedy in caught.value.remedy
    assert len(hub.file_requests()) == 1
    assert not (node.directory / "model.bin").exists()

    report = node.download()

    assert (node.directory / "model.bin").read_bytes() == BIG
    assert [bad.path for bad in report.set_aside] == ["model.bin"]


def test_after_a_failed_sync_the_kernel_is_made_to_forget_what_it_could_not_write(
    node_with, monkeypatch: pytest.MonkeyPatch
):
    """Or the next run would digest the page cache, which says what the disk does not hold."""
    node = node_with(FILES)
    done: list[str] = []

    def fail(_descriptor: int) -> None:
        done.append("sync failed")
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: done.append("forgotten"))
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(WeightsError):
        node.download()

    assert done[-1] == "forgotten"
    assert "sync failed" in done


def test_a_read_only_disk_is_not_told_as_a_full_one(node_with, monkeypatch: pytest.MonkeyPatch):
    node = node_with(FILES)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "fdatasync", refuse)

    with pytest.raises(WeightsError) as caught:
        node.download()

    assert "room" not in caught.value.remedy


@pytest.mark.parametrize("kind", ["part", "bad"])
@pytest.mark.parametrize("is_folder", [False, True], ids=["the file", "its folder"])
def test_a_link_in_our_own_corner_is_refused_and_nothing_is_written_behind_it(node_with, tmp_path, kind, is_folder):
    node = node_with(FILES)
    victim = tmp_path / "elsewhere" / "model.bin"
    victim.parent.mkdir()
    victim.write_bytes(b"somebody else's")
    link = node.directory / ".spark_pipeline" / kind / ("" if is_folder else "model.bin")
    link.parent.mkdir(parents=True)
    link.symlink_to(victim.parent if is_folder else victim)

    assert f"{link} is a symlink to {tmp_path}/elsewhere" in node.do("inspect").obstacle
    with pytest.raises(WeightsError, match="stands where the model should lie"):
        node.download()

    assert victim.read_bytes() == b"somebody else's"


def test_our_own_corner_is_not_looked_for_behind_a_link(node_with, tmp_path):
    node = node_with(FILES)
    (tmp_path / "elsewhere").mkdir()
    node.directory.mkdir(parents=True)
    (node.directory / ".spark_pipeline").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(WeightsError, match="stands where the model should lie"):
        node.download()

    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_lock_that_is_a_link_empties_nobodys_file(node_with, tmp_path):
    node = node_with(FILES)
    victim = tmp_path / "notes.txt"
    victim.write_text("somebody else's")
    (node.directory / ".spark_pipeline").mkdir(parents=True)
    (node.directory / ".spark_pipeline" / "lock").symlink_to(victim)

    with pytest.raises(WeightsError, match="stands where the model should lie"):
        node.do("verify")

    assert victim.read_text() == "somebody else's"


def test_a_link_that_appears_after_the_look_is_not_followed_either(node_with, tmp_path):
    node = node_with(FILES)
    (tmp_path / "victim").write_bytes(b"somebody else's")
    (tmp_path / "part").symlink_to(tmp_path / "victim")

    with pytest.raises(Problem, match="cannot be written"):
        part.Part(tmp_path / "part", node.manifest.wanted[0])

    assert (tmp_path / "victim").read_bytes() == b"somebody else's"


def test_what_another_way_left_unfinished_is_gone_once_all_is_proven(node_with):
    node = node_with({"model.bin": BIG, "text/model.bin": BIG})
    corner = node.directory / ".spark_pipeline"
    leftovers = [corner / "part" / "text", node.directory / ".spark_pipeline-partial", node.directory / "text"]
    leftovers[2] /= ".spark_pipeline-partial"
    for folder in leftovers:
        folder.mkdir(parents=True)
        (folder / "model.bin").write_bytes(BIG[:1000])
    for name in ("model.bin", "text/model.bin"):  # as rsync brings them
        (node.directory / name).write_bytes(BIG)

    node.do("verify")
    assert all(folder.exists() for folder in leftovers)
    node.do("seal")

    assert not any(folder.exists() for folder in (*leftovers, corner / "part"))
    assert node.do("inspect").sealed == node.manifest.sha256
