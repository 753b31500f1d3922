"""Runs one command to its end, whatever the transport: no deadlock, no missed deadline, nothing left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from spark_pipeline.errors import CommandFailedError, CommandTimeoutError, UnreachableError
from spark_pipeline.fleet.cancel import stop_if_cancelled, to_the_end
from spark_pipeline.fleet.failures import last_lines, named
from spark_pipeline.fleet.host import Completed
from spark_pipeline.fleet.order import SESSION_MARK, Order
from spark_pipeline.fleet.progress import human_seconds

STDERR_KEPT_BYTES = 256 * 1024
_POLL_SECONDS = 0.25  # how soon a command notices that it was cancelled
_MARK_SECONDS = 2.0  # that a command which is given up has to say its session, so that it can be ended


class Process(Protocol):
    """A started command. The read methods block, and give b'' at the end."""

    def read_stdout(self) -> bytes: ...

    def read_stderr(self) -> bytes: ...

    def write(self, data: bytes) -> None:
        """All of it, to standard input; a command that no longer reads is no error."""
        ...

    def close_stdin(self) -> None: ...

    def status(self, timeout: float) -> int | None:
        """Exit status; None when there is none yet after `timeout` seconds.

        Raises:
            ConnectionError: there will be none: the connection broke.
        """
        ...

    def close(self) -> None:
        """Let go of pipes and channels, so that readers and writers come back."""
        ...


class _Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

    def text(self) -> str:
        return self._kept[-self._limit :].decode("utf-8", "replace")


def complete(
    process: Process, order: Order, on_output: Callable[[bytes], None], end_session: Callable[[int], None]
) -> Completed:
    """Feed a started command its input and hand its output on, until it ends (stdout of the result is '').

    Args:
        on_output: called in this thread with each piece of standard output.
        end_session: ends that session's processes on the node; called when the command must not go on.

    Raises:
        CommandTimeoutError: `order.timeout` or `order.idle_timeout` passed.
        UnreachableError: the connection broke.
        CommandFailedError: the login shell starts no commands.
    """
    listening = _Listening(process, order, on_output)
    try:
        return listening.to_the_end()
    except BaseException as error:
        to_the_end(lambda: listening.give_up(end_session))
        if isinstance(error, ConnectionError):
            raise listening.broken(error) from error
        raise
    finally:
        process.close()


class _Listening:
    """One running command: what it said so far, and how long it may still go on."""

    def __init__(self, process: Process, order: Order, on_output: Callable[[bytes], None]) -> None:
        self.session: int | None = None
        self._process = process
        self._order = order
        self._on_output = on_output
        self._before = b""  # standard output before the line that names the session: the login shell's own
        self._output, self._errors = _Tail(2048), _Tail(STDERR_KEPT_BYTES)
        self._started = self._heard = time.monotonic()
        self._events: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        self._open = {"stdout", "stderr"}
        self._in_background("stdout", lambda: _forward("stdout", process.read_stdout, self._events))
        self._in_background("stderr", lambda: _forward("stderr", process.read_stderr, self._events))
        if (data := order.input) is None:
            process.close_stdin()
        else:
            self._in_background("stdin", lambda: _feed(process, data))

    def to_the_end(self) -> Completed:
        status = None
        while status is None:
            stop_if_cancelled()
            wait = min(_POLL_SECONDS, self._seconds_left())
            if not self._open:
                status = self._process.status(wait)
                continue
            try:
                name, data = self._events.get(timeout=wait)
            except Empty:
                continue
            self._heard = time.monotonic()
            if data:
                self._take(name, data)
            else:
                self._open.discard(name)
        if self.session is None:
            raise CommandFailedError(
                "the login shell starts no commands",
                node=self._order.node,
                observed=f"status {status}: {last_lines(self._errors.text(), self._before.decode(errors='replace'))}",
                remedy="give the user a POSIX login shell (chsh -s /bin/bash): `ssh NODE true` must end with status 0",
            )
        return Completed(self._order.argv, status, "", self._errors.text(), time.monotonic() - self._started)

    def give_up(self, end_session: Callable[[int], None]) -> None:
        """End the command on its node."""
        if (session := self._wait_for_session()) is not None:
            end_session(session)

    def _wait_for_session(self) -> int | None:
        """The session, also of a command that was given up before it had said which one it is."""
        end = time.monotonic() + _MARK_SECONDS
        while self.session is None and "stdout" in self._open and time.monotonic() < end:
            try:
                name, data = self._events.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
            if not data:
                self._open.discard(name)
            elif name == "stdout":
                self._before += data
                self._find_session()
        return self.session

    def broken(self, error: ConnectionError) -> UnreachableError:
        seconds = human_seconds(time.monotonic() - self._started)
        return UnreachableError(
            f"the connection broke while {named(self._order.argv)} ran",
            node=self._order.node,
            observed=f"after {seconds}: {error}; {self._last_words()}",
            remedy="see whether the node is up and its link is stable, then run the same again; where small commands "
            "work and much input stands still, the MTU differs along the way (ping -M do -s 8972)",
        )

    def _take(self, name: str, data: bytes) -> None:
        if name == "stderr":
            self._errors.add(data)
            return
        if self.session is None:
            self._before += data
            data = self._find_session()
        if data:
            self._output.add(data)
            self._on_output(data)

    def _find_session(self) -> bytes:
        """Note the session once its line has come; what follows that line is the command's."""
        if not (found := SESSION_MARK.search(self._before)):
            return b""
        self.session = int(found[1])
        return self._before[found.end() :]

    def _seconds_left(self) -> float:
        now = time.monotonic()
        total, idle = self._order.timeout, self._order.idle_timeout
        if now - self._started >= total:
            raise self._late(f"no end after {human_seconds(total)}")
        if idle is not None and now - self._heard >= idle:
            raise self._late(f"silent for {human_seconds(idle)}")
        return total - (now - self._started)

    def _late(self, observed: str) -> CommandTimeoutError:
        return CommandTimeoutError(
            f"{named(self._order.argv)} did not end in time and was ended",
            node=self._order.node,
            observed=f"{observed}; {self._last_words()}",
            remedy="see what the node is busy with (load, disk, network), then run the same again",
        )

    def _last_words(self) -> str:
        return last_lines(self._errors.text(), self._output.text())

    def _in_background(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=f"{self._order.node} {name}", daemon=True).start()


def _forward(name: str, read: Callable[[], bytes], events: SimpleQueue[tuple[str, bytes]]) -> None:
    data = b"x"
    while data:
        try:
            data = read()
        except (OSError, ValueError):  # closed under our hands, since the command was given up
            data = b""
        events.put((name, data))


def _feed(process: Process, data: bytes) -> None:
    process.write(data)
    process.close_stdin()
