"""Runs one command to its end, whatever the transport: no deadlock, no missed deadline, nothing left running.

A command is started inside a small `sh` that first prints the id of its session, so that a time-out, Ctrl-C or a
cancelled Dagster run can end every process of that session on the node itself: closing an SSH channel ends nothing
there. `timeout` around the command is the safety net for the day when this process dies or the network does.
"""

from __future__ import annotations

import contextvars
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from spark_pipeline.errors import CommandFailedError, CommandTimeoutError, UnreachableError
from spark_pipeline.fleet.host import Completed, Words, shell_text
from spark_pipeline.fleet.progress import human_seconds

STDERR_KEPT_BYTES = 256 * 1024
_ERROR_LINES = 15  # of the program's last words, in an error
_GRACE_SECONDS = 15  # that `timeout` on the node waits longer than we do
_POLL_SECONDS = 0.25  # how soon a command notices that it was cancelled
_MARK = re.compile(rb"spark-pipeline-session (\d+)\n")
_START = (
    'printf "spark-pipeline-session %s\\n" $$; export LC_ALL=C.UTF-8; timeout -k 5 "$@"; exit $?'  # keeps 128+signal
)
# Ends the processes of session $1: TERM, two seconds later KILL. Prints those that are still there at the end.
END_SESSION = r"""
members() {
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        pid=${line%% *}
        set -- ${line##*) }
        [ "$4" = "$session" ] && [ "$1" != Z ] && printf '%s ' "$pid"
    done
}
session=$1 tries=0
pids=$(members)
[ -z "$pids" ] || kill -TERM $pids 2>/dev/null
while pids=$(members); [ -n "$pids" ] && [ $tries -lt 40 ]; do
    [ $tries -lt 20 ] || kill -KILL $pids 2>/dev/null
    sleep 0.1
    tries=$((tries + 1))
done
printf '%s' "$pids"
"""


class Cancelled(BaseException):
    """The work that this command belongs to was given up; never leaves `parallel.each`."""


_cancel: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("cancel", default=None)


@contextmanager
def cancelled_by(event: threading.Event | None) -> Iterator[None]:
    """Commands of this block end with Cancelled when `event` is set."""
    token = _cancel.set(event)
    try:
        yield
    finally:
        _cancel.reset(token)


def stop_if_cancelled() -> None:
    """Raises Cancelled if the surrounding work was given up."""
    event = _cancel.get()
    if event is not None and event.is_set():
        raise Cancelled


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


@dataclass(frozen=True)
class Order:
    """What is to be run, and how long it may take."""

    node: str
    argv: tuple[str, ...]
    timeout: float
    input: bytes | None = None
    idle_timeout: float | None = None

    def text(self) -> str:
        """One line for a shell, see the top of this file."""
        allowance = str(math.ceil(self.timeout) + _GRACE_SECONDS)
        return "exec " + shell_text(["sh", "-c", _START, "sh", allowance, *self.argv])


def named(argv: Words) -> str:
    """The command in an error's first line: recognisable, never a page."""
    text = shell_text(argv).replace("\n", " ")
    return text if len(text) <= 160 else text[:160] + " ..."


def last_lines(*texts: str) -> str:
    """The last lines of the first text that has any."""
    for text in texts:
        lines = text.strip().splitlines()
        if lines:
            return "\n".join(line[-500:] for line in lines[-_ERROR_LINES:])
    return "it printed nothing"


def failure(node: str, completed: Completed, stdout_tail: str = "") -> CommandFailedError:
    """The error of a command that ended with a status that is not 0."""
    return CommandFailedError(
        f"{named(completed.argv)} failed",
        node=node,
        observed=f"status {completed.status}: {last_lines(completed.stderr, completed.stdout, stdout_tail)}",
        remedy="run it by hand on that node to see it fail" if completed.status != 127 else "install that program",
    )


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
    """
    started = heard = time.monotonic()
    events: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
    errors, output = _Tail(STDERR_KEPT_BYTES), _Tail(2048)
    session: int | None = None
    before = b""  # standard output up to the line that names the session: what the login shell's own files print
    streams = {"stdout", "stderr"}
    for name, read in (("stdout", process.read_stdout), ("stderr", process.read_stderr)):
        threading.Thread(target=_forward, args=(name, read, events), name=f"{order.node} {name}", daemon=True).start()
    if order.input is None:
        process.close_stdin()
    else:
        threading.Thread(target=_feed, args=(process, order.input), name=f"{order.node} stdin", daemon=True).start()

    def last_words() -> str:
        return last_lines(errors.text(), output.text())

    try:
        status = None
        while status is None:
            stop_if_cancelled()
            now = time.monotonic()
            if now - started >= order.timeout:
                raise _late(order, f"no end after {human_seconds(order.timeout)}", last_words())
            if order.idle_timeout is not None and now - heard >= order.idle_timeout:
                raise _late(order, f"silent for {human_seconds(order.idle_timeout)}", last_words())
            wait = min(_POLL_SECONDS, order.timeout - (now - started))
            if not streams:
                status = process.status(wait)
                continue
            try:
                name, data = events.get(timeout=wait)
            except Empty:
                continue
            heard = time.monotonic()
            if not data:
                streams.discard(name)
            elif name == "stderr":
                errors.add(data)
            elif session is not None:
                output.add(data)
                on_output(data)
            else:
                before += data
                if found := _MARK.search(before):
                    session = int(found[1])
                    rest = before[found.end() :]
                    output.add(rest)
                    if rest:
                        on_output(rest)
        if session is None:
            raise CommandFailedError(
                "the login shell starts no commands",
                node=order.node,
                observed=f"status {status}: {last_lines(errors.text(), before.decode(errors='replace'))}",
                remedy="give the user a POSIX login shell (chsh -s /bin/bash): `ssh NODE true` must end with status 0",
            )
    except ConnectionError as error:
        if session is not None:
            end_session(session)
        raise UnreachableError(
            f"the connection broke while {named(order.argv)} ran",
            node=order.node,
            observed=f"after {human_seconds(time.monotonic() - started)}: {error}; {last_words()}",
            remedy="see whether the node is up and its link is stable, then run the same again",
        ) from error
    except BaseException:
        if session is not None:
            end_session(session)
        raise
    finally:
        process.close()
    return Completed(order.argv, status, "", errors.text(), time.monotonic() - started)


def _late(order: Order, observed: str, last_words: str) -> CommandTimeoutError:
    return CommandTimeoutError(
        f"{named(order.argv)} did not end in time and was ended",
        node=order.node,
        observed=f"{observed}; {last_words}",
        remedy="see what the node is busy with (load, disk, network), then run the same again",
    )


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
