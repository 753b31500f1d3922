"""Stand-ins for machines, for tests of what a stage says to them. They fail on anything that was not foreseen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Self, TypeVar

from spark_pipeline.errors import MachineError
from spark_pipeline.fleet.failures import failure
from spark_pipeline.fleet.host import Completed, Words, shell_text
from spark_pipeline.fleet.parallel import each

T = TypeVar("T")
Pattern = Sequence[str | EllipsisType]


@dataclass
class _Step:
    pattern: tuple[str | EllipsisType, ...]
    stdout: str
    stderr: str
    status: int
    error: Exception | None
    times: int | None
    used: int = 0

    def takes(self, argv: tuple[str, ...]) -> bool:
        if self.times is not None and self.used >= self.times:
            return False
        return _fits(self.pattern, argv)


def _fits(pattern: tuple[str | EllipsisType, ...], argv: tuple[str, ...]) -> bool:
    """`...` stands for any number of words, also none."""
    if not pattern:
        return not argv
    if pattern[0] is ...:
        return any(_fits(pattern[1:], argv[start:]) for start in range(len(argv) + 1))
    return bool(argv) and pattern[0] == argv[0] and _fits(pattern[1:], argv[1:])


@dataclass
class ScriptedHost:
    """A `Host` that answers the commands it was told to expect, and fails the test on any other.

        host = ScriptedHost("head")
        host.on("docker", "version", ..., stdout="24.0.7\\n")     # `...`: any words, also none
        host.on("docker", "rm", ..., status=1, stderr="no such container", times=2)
        ...
        host.finish()                                            # every expected command was really run

    Several expectations that fit are used up in the order in which they were given. `commands` and `inputs` hold what
    was run, `files` what lies on the machine.
    """

    name: str = "head"
    files: dict[str, bytes] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    inputs: list[str | bytes | None] = field(default_factory=list)
    _steps: list[_Step] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on(
        self,
        *pattern: str | EllipsisType,
        stdout: str = "",
        stderr: str = "",
        status: int = 0,
        error: Exception | None = None,
        times: int | None = 1,
    ) -> Self:
        """Expect a command.

        Args:
            error: raised instead of an answer.
            times: how often; None for any number, also never.
        """
        self._steps.append(_Step(pattern, stdout, stderr, status, error, times))
        return self

    def run(
        self,
        argv: Words,
        *,
        input: str | bytes | None = None,
        timeout: float,
        check: bool = True,
        urgent: bool = False,
    ) -> Completed:
        done = self._answer(tuple(argv), input, timeout)
        if check and done.status != 0:
            raise failure(self.name, done)
        return done

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
        done = self._answer(tuple(argv), input, timeout)
        for line in done.stdout.splitlines():
            on_line(line)
        if check and done.status != 0:
            raise failure(self.name, done)
        return Completed(done.argv, done.status, "", done.stderr, done.seconds)

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        self.files[path] = content

    def get(self, path: str) -> bytes:
        if path not in self.files:
            raise MachineError(f"{path} could not be read", node=self.name, observed="No such file or directory")
        return self.files[path]

    def finish(self) -> None:
        """Fail unless every expected command was run as often as it was expected."""
        missing = [step for step in self._steps if step.times is not None and step.used < step.times]
        assert not missing, f"[{self.name}] never run: " + "; ".join(
            " ".join("..." if word is ... else word for word in step.pattern) for step in missing
        )

    def _answer(self, argv: tuple[str, ...], input: str | bytes | None, timeout: float) -> Completed:
        assert timeout > 0, f"[{self.name}] without a time-out: {shell_text(argv)}"
        with self._lock:
            self.commands.append(argv)
            self.inputs.append(input)
            step = next((step for step in self._steps if step.takes(argv)), None)
            assert step is not None, f"[{self.name}] not expected: {shell_text(argv)}"
            step.used += 1
        if step.error is not None:
            raise step.error
        return Completed(argv, step.status, step.stdout, step.stderr, 0.0)


class ScriptedConnection:
    """A `FleetConnection` to scripted hosts, for `Session(..., connection=scripted_connection(...))`."""

    def __init__(self, hosts: Mapping[str, ScriptedHost] | Iterable[ScriptedHost]) -> None:
        every = hosts.values() if isinstance(hosts, Mapping) else hosts
        self.hosts = {host.name: host for host in every}

    def host(self, name: str) -> ScriptedHost:
        return self.hosts[name]

    def each(self, names: Iterable[str], work: Callable[[ScriptedHost], T]) -> dict[str, T]:
        return each(names, lambda name: work(self.host(name)))

    def finish(self) -> None:
        """See ScriptedHost.finish, for every host."""
        for host in self.hosts.values():
            host.finish()
