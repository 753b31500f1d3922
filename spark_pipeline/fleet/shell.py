"""A host that is asked through a shell: what the ssh and the local transport share."""

from __future__ import annotations

import codecs
import io
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable

from spark_pipeline.errors import MachineError, SparkPipelineError
from spark_pipeline.fleet.cancel import cancelled_by
from spark_pipeline.fleet.execution import Process, complete
from spark_pipeline.fleet.failures import failure
from spark_pipeline.fleet.host import Completed, Words
from spark_pipeline.fleet.order import END_SESSION, Order

_FILE_SECONDS = 60.0
# $1 path, $2 mode, $3 size. The size tells a whole file from one whose sender died; renaming shows it all at once.
_PUT = r"""
set -e
mkdir -p -- "$(dirname -- "$1")"
umask 077
part="$1.part.$$"
trap 'rm -f -- "$part"' EXIT
cat >"$part"
[ "$(wc -c <"$part")" -eq "$3" ] || { echo "only $(wc -c <"$part") of $3 bytes arrived" >&2; exit 1; }
chmod -- "$2" "$part"
mv -f -- "$part" "$1"
"""


class ShellHost(ABC):
    """Implements `Host` on top of one ability: to start a line of shell."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """The node's name in the fleet."""
        return self._name

    @abstractmethod
    def _start(self, text: str, *, urgent: bool = False) -> Process:
        """Start a line of shell in a session of its own. An urgent one waits for no other command."""

    def run(
        self,
        argv: Words,
        *,
        input: str | bytes | None = None,
        timeout: float,
        check: bool = True,
        urgent: bool = False,
    ) -> Completed:
        """See `Host.run`."""
        completed, output = self._gather(argv, input=input, timeout=timeout, urgent=urgent)
        completed = _with_output(completed, output.decode("utf-8", "replace"))
        if check and completed.status != 0:
            raise failure(self._name, completed)
        return completed

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
        """See `Host.stream`. A carriage return ends a line too: that is how progress is drawn."""
        lines = _Lines(on_line)
        completed = self._execute(Order(self._name, tuple(argv), timeout, _bytes(input), idle_timeout), lines.add)
        lines.end()
        if check and completed.status != 0:
            raise failure(self._name, completed, lines.last)
        return completed

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        """See `Host.put`."""
        argv = ["sh", "-c", _PUT, "sh", path, f"{mode:o}", str(len(content))]
        completed, _ = self._gather(argv, input=content, timeout=_FILE_SECONDS)
        if completed.status != 0:
            raise MachineError(
                f"{path} could not be written",
                node=self._name,
                observed=completed.stderr or f"status {completed.status}",
                remedy=f"see that {posixpath.dirname(path)} may be written and its disk has room",
            )

    def get(self, path: str) -> bytes:
        """See `Host.get`."""
        completed, output = self._gather(["cat", "--", path], timeout=_FILE_SECONDS)
        if completed.status != 0:
            raise MachineError(
                f"{path} could not be read",
                node=self._name,
                observed=completed.stderr or f"status {completed.status}",
                remedy="see that the file exists and may be read by the login user",
            )
        return output

    def _gather(
        self, argv: Words, *, input: str | bytes | None = None, timeout: float, urgent: bool = False
    ) -> tuple[Completed, bytes]:
        pieces: list[bytes] = []
        completed = self._execute(Order(self._name, tuple(argv), timeout, _bytes(input)), pieces.append, urgent=urgent)
        return completed, b"".join(pieces)

    def _execute(self, order: Order, on_output: Callable[[bytes], None], *, urgent: bool = False) -> Completed:
        return complete(self._start(order.text(), urgent=urgent), order, on_output, self._end_session)

    def _end_session(self, session: int) -> None:
        """End a command's processes, as well as it can be done: the cause of the ending is what gets reported."""
        order = Order(self._name, ("sh", "-c", END_SESSION, "sh", str(session)), timeout=15)
        with cancelled_by(None):
            try:
                complete(self._start(order.text(), urgent=True), order, lambda _: None, lambda _: None)
            except SparkPipelineError:
                return


def _bytes(input: str | bytes | None) -> bytes | None:
    return input.encode() if isinstance(input, str) else input


def _with_output(completed: Completed, stdout: str) -> Completed:
    return Completed(completed.argv, completed.status, stdout, completed.stderr, completed.seconds)


class _Lines:
    """Cuts bytes into lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._rest = ""
        self.last = ""

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in lines:
            self._give(line)

    def end(self) -> None:
        self.add(b"")
        self._rest += self._decoder.decode(b"", final=True)
        if self._rest:
            self._give(self._rest)

    def _give(self, line: str) -> None:
        self.last = line or self.last
        self._on_line(line)
