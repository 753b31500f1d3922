"""Commands on this machine: the same runner and the same wrapper as over ssh, only without the network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_pipeline.errors import CommandFailedError, CommandTimeoutError, MachineError
from spark_pipeline.fleet.local import LocalHost, LocalProcess

HOST = LocalHost("here")
WORDS = ["two words", "it's", 'say "hi"', "$(id)", "`id`", "$HOME", "a\nb", "*", "-n", "", "ünï", "back\\slash", "!!"]


def processes_with(word: str) -> list[str]:
    """Command lines, of any process, in which this word stands."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if word in words:
            found.append(" ".join(words))
    return found


def seconds_nobody_else_sleeps() -> str:
    """A duration that tells this test's `sleep` from every other one on the machine."""
    return f"3{os.getpid()}{time.monotonic_ns() % 1000:03d}"


def interrupt_after(seconds: float) -> threading.Timer:
    """Ctrl-C, as the terminal or Dagster sends it."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_words_arrive_as_they_were_given() -> None:
    done = HOST.run(["printf", "%s|", *WORDS], timeout=30)

    assert done.stdout == "".join(f"{word}|" for word in WORDS)


def test_commands_start_in_the_home_directory_wherever_the_pipeline_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    home = HOST.run(["sh", "-c", "cd ~ && pwd -P"], timeout=30).stdout
    assert HOST.run(["pwd", "-P"], timeout=30).stdout == home


def test_output_errors_and_status_come_back_apart() -> None:
    done = HOST.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=30, check=False)

    assert (done.status, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_failed_command_is_an_error_with_its_last_words() -> None:
    with pytest.raises(CommandFailedError) as caught:
        HOST.run(["sh", "-c", "seq 100 >&2; echo no such shard >&2; exit 3"], timeout=30)

    assert caught.value.node == "here"
    assert caught.value.observed.startswith("status 3:")
    assert caught.value.observed.endswith("no such shard")
    assert len(caught.value.observed.splitlines()) < 20, "the last lines only"


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(CommandFailedError, match="no-such-program") as caught:
        HOST.run(["no-such-program"], timeout=30)

    assert "127" in caught.value.observed
    assert "install" in caught.value.remedy


def test_a_command_that_a_signal_ends_has_the_shells_status() -> None:
    assert HOST.run(["sh", "-c", "kill -KILL $$"], timeout=30, check=False).status == 128 + signal.SIGKILL


def test_standard_input_is_closed_when_none_is_given() -> None:
    assert HOST.run(["cat"], timeout=30).stdout == ""


def test_megabytes_through_both_streams_at_once_arrive_whole() -> None:
    data = os.urandom(1 << 20).hex()

    done = HOST.run(["sh", "-c", "tee /dev/stderr"], input=data, timeout=60)

    assert done.stdout == data
    assert done.stderr == data[-len(done.stderr) :], "of errors, the end is kept"
    assert len(done.stderr) >= 200_000


def test_a_command_that_does_not_read_its_input_ends_all_the_same() -> None:
    assert HOST.run(["true"], input=b"x" * (8 << 20), timeout=30).status == 0


def test_a_time_out_ends_the_command_and_what_it_started() -> None:
    duration = seconds_nobody_else_sleeps()
    script = f"trap '' TERM; sleep {duration} & echo started; sleep {duration}"

    with pytest.raises(CommandTimeoutError) as caught:
        HOST.run(["sh", "-c", script], timeout=0.5)

    assert "0.5 s" in caught.value.observed
    assert "started" in caught.value.observed, "what it said before helps to see why"
    assert processes_with(duration) == []


def test_the_time_out_counts_while_output_flows() -> None:
    started = time.monotonic()

    with pytest.raises(CommandTimeoutError):
        HOST.run(["sh", "-c", "while :; do echo x; sleep 0.05; done"], timeout=0.5)

    assert time.monotonic() - started < 20


def test_silence_ends_a_stream_long_before_its_time_out() -> None:
    lines: list[str] = []

    with pytest.raises(CommandTimeoutError, match="was ended") as caught:
        HOST.stream(
            ["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done; sleep 60"],
            on_line=lines.append,
            timeout=50,
            idle_timeout=2,
        )

    assert lines == ["1", "2", "3"]
    assert "silent" in caught.value.observed


def test_ctrl_c_ends_the_command() -> None:
    duration = seconds_nobody_else_sleeps()
    timer = interrupt_after(0.5)

    with pytest.raises(KeyboardInterrupt):
        HOST.run(["sleep", duration], timeout=60)

    timer.join()
    assert processes_with(duration) == []


def test_a_reader_of_lines_that_fails_ends_the_command() -> None:
    duration = seconds_nobody_else_sleeps()

    def refuse(line: str) -> None:
        raise ValueError(line)

    with pytest.raises(ValueError, match="first"):
        HOST.stream(["sh", "-c", f"echo first; sleep {duration}"], on_line=refuse, timeout=60)

    assert processes_with(duration) == []


def test_lines_come_one_by_one_whatever_ends_them() -> None:
    lines: list[str] = []

    done = HOST.stream(
        ["printf", "%b", "one\\ntwo\\r\\n10%\\r20%\\r\\n\\nh\\0303\\0251las"], on_line=lines.append, timeout=30
    )

    assert lines == ["one", "two", "10%", "20%", "", "hélas"]
    assert done.stdout == ""


def test_lines_come_while_the_command_still_runs() -> None:
    seen: list[float] = []

    HOST.stream(["sh", "-c", "echo a; sleep 1; echo b"], on_line=lambda _: seen.append(time.monotonic()), timeout=30)

    assert seen[1] - seen[0] > 0.5


def test_files_are_written_whole_with_their_mode_and_read_back(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    path = tmp_path / "new directory" / "it's $(a) file"

    HOST.put(content, str(path), mode=0o600)

    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert HOST.get(str(path)) == content
    assert [item.name for item in path.parent.iterdir()] == [path.name], "no temporary file stays"


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "directory").write_text("a file, where a directory is wanted")

    with pytest.raises(MachineError, match="could not be written") as caught:
        HOST.put(b"x", str(tmp_path / "directory" / "file"))

    assert "exists" in caught.value.observed or "directory" in caught.value.observed
    assert (tmp_path / "directory").read_text() == "a file, where a directory is wanted"


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="absent"):
        HOST.get(str(tmp_path / "absent"))


class ChattyHost(LocalHost):
    """A login shell whose own start-up files print something, as many a ~/.bashrc does."""

    def _start(self, text: str, *, urgent: bool = False) -> LocalProcess:
        return super()._start(f"echo welcome; echo to this machine; {text}")


class ClosedHost(LocalHost):
    """An account whose login shell is nologin."""

    def _start(self, text: str, *, urgent: bool = False) -> LocalProcess:
        return super()._start("echo This account is currently not available.; exit 1")


def test_what_a_login_shell_prints_by_itself_is_not_output() -> None:
    assert ChattyHost("here").run(["echo", "mine"], timeout=30).stdout == "mine\n"


def test_a_login_shell_that_starts_nothing_is_named_as_the_cause() -> None:
    with pytest.raises(CommandFailedError, match="login shell") as caught:
        ClosedHost("here").run(["true"], timeout=30)

    assert "not available" in caught.value.observed


def test_a_command_outlives_its_killed_caller_only_for_its_time_out() -> None:
    """Nobody is there to end it: `timeout` on the node must."""
    duration = seconds_nobody_else_sleeps()
    script = (
        "import spark_pipeline.fleet.order as order; order._GRACE_SECONDS = 1\n"
        "from spark_pipeline.fleet.local import LocalHost\n"
        f"LocalHost('here').run(['sleep', '{duration}'], timeout=1)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script])
    wait_until(lambda: processes_with(duration) != [])
    caller.kill()
    caller.wait()

    assert processes_with(duration) != [], "else this test shows nothing"
    wait_until(lambda: processes_with(duration) == [], seconds=20)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
