"""Giving up work that runs in several threads."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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


def to_the_end(work: Callable[[], object]) -> None:
    """Do `work` whole, whatever interrupts meanwhile: for taking back what a cancelled step has started.

    One Ctrl-C reaches a Dagster step twice, from the terminal and from its parent, and the second would end the
    clean-up that the first began. Interrupts are raised in the main thread only, so the work runs in another; the
    interrupt that came first is on its way up already, and later ones say nothing new. Call it first thing in an
    `except` or `finally`: what stands before it there can still be interrupted.

    Raises:
        What `work` raises.
    """
    failed: list[BaseException] = []
    done = threading.Event()
    not_begun = threading.Lock()

    def run() -> None:
        if not not_begun.acquire(blocking=False):
            return  # started twice: the interrupt came between the start and the note of it
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed on below
            failed.append(error)
        finally:
            done.set()

    is_started = False
    # Not Thread.join: interrupted, it takes the thread for ended (CPython 3.11).
    while not done.is_set():
        try:
            if not is_started:
                threading.Thread(target=run, name="to the end").start()
                is_started = True
            done.wait(timeout=1)
        except Exception:
            raise  # no thread to be had
        except BaseException:  # noqa: BLE001, S112 - see above
            continue
    if failed:
        raise failed[0]
