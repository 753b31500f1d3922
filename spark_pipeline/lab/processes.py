"""Processes that outlive us: started detached, known by pid *and* start time, ended by id only.

A pid alone is not a name: after a crash the number in a pid file may belong to anybody. Pid, start time and
the machine's boot id together are one.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab.commands import run

# Arguments: pid file, log, program... The process notes itself, then becomes the program. Were the note left to us,
# a kill -9 of us in between would leave a process that nobody knows.
_NOTE_AND_BECOME = """\
exec >>"$1" 2>&1 </dev/null
shift
read -r stat </proc/self/stat
read -r boot </proc/sys/kernel/random/boot_id
started=$(echo "${stat##*) }" | cut -d' ' -f20)
echo "$$ $started $boot" >"$0.new" && mv "$0.new" "$0" && exec "$@"
"""


@dataclass(frozen=True)
class ProcessId:
    """One process of this boot of this machine."""

    pid: int
    started_ticks: int  # since boot
    boot: str

    @property
    def alive(self) -> bool:
        """Whether this very process runs. A zombie has ended, though nobody has asked how."""
        stat = _stat(self.pid)
        return stat is not None and stat == (True, self.started_ticks) and self.boot == boot_id()

    def end(self, sig: signal.Signals = signal.SIGKILL, wait_s: float = 10) -> bool:
        """Send a signal and wait until the process is gone; whether it is.

        A pidfd is opened before the identity is checked, so the signal cannot hit a process that got the number
        in between.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.alive:
                return True
            signal.pidfd_send_signal(handle, sig)
            ready, _, _ = select.select([handle], [], [], wait_s)
            return bool(ready)
        except ProcessLookupError:
            return True
        finally:
            os.close(handle)

    def child(self) -> ProcessId | None:
        """Its only or first child, None when there is none."""
        try:
            words = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return identify(int(words[0])) if words else None


def boot_id() -> str:
    """Changes with every boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> tuple[bool, int] | None:
    """(not a zombie, start time in ticks) of a pid, None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses; the fields after it are fixed.
    fields = text[text.rindex(")") + 1 :].split()
    return fields[0] not in "ZX", int(fields[19])


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now."""
    stat = _stat(pid)
    return ProcessId(pid, stat[1], boot_id()) if stat and stat[0] else None


def read_pid_file(path: Path) -> ProcessId | None:
    """The process a pid file names, if it still runs."""
    try:
        pid, started, boot = path.read_text().split()
        process = ProcessId(int(pid), int(started), boot)
    except (FileNotFoundError, ValueError):
        return None  # none, or torn by a crash: then it names nobody
    return process if process.alive else None


def start_detached(
    argv: Sequence[str],
    *,
    pid_file: Path,
    log: Path,
    cwd: Path = Path("/"),
    extra_environment: Mapping[str, str] | None = None,
) -> ProcessId:
    """Start a process that is nobody's child and notes itself in `pid_file`; return it.

    `setsid --fork` hands it to the machine's init, so it neither dies with us nor stays as our zombie.

    Raises:
        LabError: it ended at once; the error carries the end of its log.
    """
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    pid_file.unlink(missing_ok=True)
    command = ["setsid", "--fork", "sh", "-c", _NOTE_AND_BECOME, str(pid_file), str(log)]
    run([*command, *argv], timeout_s=10, cwd=cwd, extra_environment=extra_environment)
    deadline = time.monotonic() + 10
    while not pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process = read_pid_file(pid_file)
    if process is None:
        raise LabError(f"{argv[0]} ended as soon as it started", observed=tail(log))
    return process


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for an error."""
    if not log.exists():
        return f"no log at {log}"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
