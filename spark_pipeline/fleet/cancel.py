"""Giving up work that runs in several threads."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
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
