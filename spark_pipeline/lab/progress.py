"""Progress lines with elapsed time, and a sign of life while a long step says nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Say = Callable[[str], None]


def with_elapsed_time(say: Say) -> Say:
    """Put the seconds since now before every line."""
    started = time.monotonic()
    return lambda line: say(f"[{time.monotonic() - started:6.1f} s] {line}")


@dataclass
class Heartbeat:
    """What a long step is doing right now; the step writes `doing`, the beat reads it."""

    doing: str = ""


@contextmanager
def heartbeat(say: Say, step: str, every_s: float = 5.0) -> Iterator[Heartbeat]:
    """Say every few seconds that `step` goes on, and with what."""
    beat = Heartbeat()
    ended = threading.Event()
    started = time.monotonic()

    def run() -> None:
        while not ended.wait(every_s):
            doing = f": {beat.doing}" if beat.doing else ""
            say(f"{step}, {time.monotonic() - started:.0f} s so far{doing}")

    thread = threading.Thread(target=run, name=f"heartbeat of {step}", daemon=True)
    thread.start()
    try:
        yield beat
    finally:
        ended.set()
        thread.join()
