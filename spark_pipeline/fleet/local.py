"""The node that the orchestrator itself runs on."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import IO

from spark_pipeline.fleet.shell import ShellHost

_PIECE_BYTES = 64 * 1024


class LocalHost(ShellHost):
    """Runs commands as the user that runs the pipeline, from the home directory, as an ssh server does."""

    def _start(self, text: str, *, urgent: bool = False) -> LocalProcess:  # noqa: ARG002 - nothing to wait for here
        return LocalProcess(
            subprocess.Popen(
                ["sh", "-c", text],
                cwd=_home(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        )


class LocalProcess:
    """A started command, see execution.Process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def read_stdout(self) -> bytes:
        return os.read(_descriptor(self._process.stdout), _PIECE_BYTES)

    def read_stderr(self) -> bytes:
        return os.read(_descriptor(self._process.stderr), _PIECE_BYTES)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(_descriptor(self._process.stdin), view) :]
        except (OSError, ValueError):
            return  # it reads no further: its status says why

    def close_stdin(self) -> None:
        _close(self._process.stdin)

    def status(self, timeout: float) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            _close(pipe)


def _home() -> Path:
    """The one that ssh calls `%d`: of the user's record, whatever $HOME says. A missing one does not stop a login."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    return home if home.is_dir() else Path("/")


def _descriptor(pipe: IO[bytes] | None) -> int:
    assert pipe is not None  # all three were asked for
    return pipe.fileno()


def _close(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except OSError:
        return
