"""What a stage may ask of a machine, whatever the way to it.

Commands are lists of words. They become text for a shell in one place only, `shell_text`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Words = Sequence[str]


def shell_text(argv: Words) -> str:
    """The words as one line that any POSIX shell reads back as exactly these words."""
    return shlex.join(argv)


@dataclass(frozen=True)
class Completed:
    """A command that ended."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float


class Host(Protocol):
    """One node. Every method raises MachineError's children, each naming the node."""

    @property
    def name(self) -> str:
        """The node's name in the fleet."""
        ...

    def run(
        self,
        argv: Words,
        *,
        input: str | bytes | None = None,
        timeout: float,
        check: bool = True,
        urgent: bool = False,
    ) -> Completed:
        """Run a command to its end.

        Args:
            argv: the words.
            input: its standard input; None closes it at once. Secrets go here, never into argv.
            timeout: seconds from start to end.
            check: raise CommandFailedError on a status that is not 0.
            urgent: wait for no other command, however many run on this node. For short ones that may not come late.
        """
        ...

    def stream(
        self,
        argv: Words,
        *,
        on_line: Callable[[str], None],
        input: str | bytes | None = None,
        timeout: float,
        idle_timeout: float | None = None,
        check: bool = True,
    ) -> Completed:
        """Like `run`, handing each line of standard output to `on_line` as it comes (stdout of the result is '').

        `idle_timeout`: seconds without a single byte after which the command is ended and CommandTimeoutError raised.
        """
        ...

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        """Write a small file, whole or not at all; its directory is made."""
        ...

    def get(self, path: str) -> bytes:
        """Read a small file."""
        ...
