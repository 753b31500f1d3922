"""Ctrl-C at a chosen moment."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable


def interrupt_when(seen: Callable[[], bool]) -> threading.Thread:
    """Ctrl-C as soon as `seen()` is true."""

    def watch() -> None:
        end = time.monotonic() + 120
        while not seen() and time.monotonic() < end:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
