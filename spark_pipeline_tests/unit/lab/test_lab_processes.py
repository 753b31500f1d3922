"""Processes are known by more than a number, commands end in time, and one change happens at a time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.errors import LabError
from spark_pipeline.lab import packages
from spark_pipeline.lab.commands import run
from spark_pipeline.lab.locks import only_one
from spark_pipeline.lab.processes import ProcessId, identify, read_pid_file, start_detached
from spark_pipeline.lab.progress import heartbeat


@pytest.fixture
def sleeper() -> Iterator[ProcessId]:
    child = subprocess.Popen(["sleep", "60"])
    found = identify(child.pid)
    assert found
    yield found
    child.kill()
    child.wait()


def silent(_: str) -> None:
    pass


def test_a_process_is_itself_only_with_its_start_time_and_boot(sleeper: ProcessId) -> None:
    assert sleeper.alive
    assert not replace(sleeper, started_ticks=sleeper.started_ticks + 1).alive
    assert not replace(sleeper, boot="another").alive


def test_ending_a_number_that_somebody_else_took_over_ends_nobody(sleeper: ProcessId) -> None:
    assert replace(sleeper, started_ticks=sleeper.started_ticks + 1).end()
    assert sleeper.alive


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = identify(child.pid)
    assert process
    assert process.end()
    assert not process.alive  # nobody has waited for it yet
    child.wait()


@pytest.mark.parametrize("text", ["", "12", "a b c", "12 34", "999999999 1 boot"])
def test_a_torn_or_stale_pid_file_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    assert read_pid_file(tmp_path / "pid") is None


def test_a_detached_process_is_noted_logged_and_no_child_of_ours(tmp_path: Path) -> None:
    script = "import time; print('hello', flush=True); time.sleep(60)"
    pid_file, log = tmp_path / "x.pid", tmp_path / "a log's file"
    process = start_detached(["python3", "-c", script], pid_file=pid_file, log=log)
    try:
        assert read_pid_file(pid_file) == process
        parent = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert int(parent) != os.getpid()
        deadline = time.monotonic() + 10
        while "hello" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert log.read_text() == "hello\n"
    finally:
        assert process.end()


def test_a_failed_command_shows_its_words_and_its_status() -> None:
    with pytest.raises(LabError) as caught:
        run(["sh", "-c", "echo because >&2; exit 3"])
    assert caught.value.observed == "status 3: because"


def test_a_missing_program_is_named() -> None:
    with pytest.raises(LabError, match="no-such-program cannot be started"):
        run(["no-such-program"])


def test_a_time_limit_ends_grandchildren_too(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(LabError, match=r"no end after 0\.5 s"):
        run(["sh", "-c", f"sleep 60 & echo $! > {note}; wait"], timeout_s=0.5)
    time.sleep(0.1)
    assert identify(int(note.read_text())) is None


def test_a_lock_is_waited_for_and_its_holder_can_be_found(tmp_path: Path) -> None:
    said: list[str] = []
    lock = tmp_path / "lock"
    with (
        only_one(lock, silent, what="x"),
        pytest.raises(LabError) as caught,
        only_one(lock, said.append, what="x", wait_s=0.3),
    ):
        raise AssertionError("two at once")
    assert "fuser" in caught.value.remedy
    assert said == ["waiting: another process works on x"]


def test_a_lock_file_that_a_purge_removed_locks_no_longer(tmp_path: Path) -> None:
    with only_one(tmp_path / "run" / "lock", silent, what="x"):
        (tmp_path / "run" / "lock").unlink()
        with only_one(tmp_path / "run" / "lock", silent, what="x", wait_s=0.1):
            pass


def test_a_long_step_gives_signs_of_life() -> None:
    said: list[str] = []
    with heartbeat(said.append, "step", every_s=0.05) as beat:
        beat.doing = "unpacking"
        time.sleep(0.2)
    assert said
    assert said[-1].endswith("so far: unpacking")


def test_nothing_missing_asks_no_package_manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("apt-get was called")

    monkeypatch.setattr(packages, "missing_tools", lambda: ())
    monkeypatch.setattr(packages, "registry_program", lambda _: tmp_path)
    monkeypatch.setattr(packages, "run", refuse)
    packages.ensure_packages(silent)
