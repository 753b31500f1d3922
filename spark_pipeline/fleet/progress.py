"""Long work tells where it stands: how much, how fast, how long still; no minutes of silence, no line a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str], None]


def human_bytes(count: float) -> str:
    """1536 -> '1.5 kB': decimal units, as disks and links are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def human_seconds(seconds: float) -> str:
    """75 -> '1 min 15 s'."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


class Meter:
    """Counts bytes of one piece of work and reports at most every `every_seconds`."""

    def __init__(self, what: str, total_bytes: int, progress: Progress, *, every_seconds: float = 5.0) -> None:
        self._what = what
        self._total = total_bytes
        self._progress = progress
        self._every = every_seconds
        self._started = self._last = time.monotonic()
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.set(self._done + count)

    def set(self, done: int) -> None:
        """The work stands at `done` bytes."""
        self._done = done
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            self._progress(self.line(now))

    def line(self, now: float | None = None) -> str:
        """'what: 1.2 GB of 4.8 GB (25 %), 410.0 MB/s, 9 s left'."""
        elapsed = max((now or time.monotonic()) - self._started, 1e-6)
        rate = self._done / elapsed
        share = f" ({100 * self._done / self._total:.0f} %)" if self._total else ""
        missing = max(self._total - self._done, 0)  # the total may be an estimate
        left = f", {human_seconds(missing / rate)} left" if rate > 0 and self._total else ""
        return (
            f"{self._what}: {human_bytes(self._done)} of {human_bytes(self._total)}{share}, {human_bytes(rate)}/s{left}"
        )


@contextmanager
def heartbeat(what: str, progress: Progress, *, every_seconds: float = 10.0) -> Iterator[None]:
    """Say `what` at the start, then with the elapsed time every few seconds until the block ends."""
    started = time.monotonic()
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(every_seconds):
            progress(f"{what} ({human_seconds(time.monotonic() - started)})")

    progress(what)
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
