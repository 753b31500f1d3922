"""Commands on this machine: lists of words, always with a time-out, and failures that explain themselves."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from spark_pipeline.errors import LabError

# Where administrators' programs are: a plain user's PATH, or cron's, lacks them.
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def search_path() -> str:
    """PATH with the administrators' folders, for `ip`, `debootstrap` and the like."""
    words = [word for word in os.environ.get("PATH", "").split(os.pathsep) if word]
    return os.pathsep.join([*words, *(sbin for sbin in _SBIN if sbin not in words)])


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of every command: messages in English, because some of them are read."""
    return {**os.environ, "PATH": search_path(), "LC_ALL": "C", **(extra or {})}


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 30,
    input: str | None = None,
    check: bool = True,
    extra_environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed.

    The command is the leader of a process group of its own, and a time-out ends the whole group:
    `nsenter` forks, and its child would outlive it.

    Raises:
        LabError: it does not exist, did not end in time, or (with `check`) ended with a status other than 0.
    """
    words = [str(word) for word in argv]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment(extra_environment),
            cwd=cwd,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} cannot be started", observed=str(error)) from error
    try:
        stdout, stderr = process.communicate(input, timeout=timeout_s)
    except BaseException as error:
        _end_group(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise LabError(f"no end after {timeout_s:g} s: {shlex.join(words)}") from error
        raise
    if check and process.returncode != 0:
        raise LabError(
            f"a command failed: {shlex.join(words)}",
            observed=f"status {process.returncode}: {(stderr or stdout).strip()[-2000:]}",
        )
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill the group of a command that is still our child, then read it out."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
