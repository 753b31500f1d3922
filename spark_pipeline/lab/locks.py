"""One change of a lab at a time, across processes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab.progress import Say


@contextmanager
def only_one(path: Path, say: Say, *, what: str, wait_s: float = 900) -> Iterator[None]:
    """Hold the lock file `path`; the kernel lets go of it when this process ends, however it ends.

    Raises:
        LabError: somebody else held it for `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still_there(path, handle):
                break
        except BlockingIOError:
            if not told:
                say(f"waiting: another process works on {what}")
                told = True
            if time.monotonic() > deadline:
                os.close(handle)
                raise LabError(
                    f"another process has worked on {what} for {wait_s:.0f} s",
                    observed=f"lock {path}",
                    remedy=f"see who: fuser -v {path}",
                ) from None
            time.sleep(0.2)
        os.close(handle)
    try:
        yield
    finally:
        os.close(handle)


def _still_there(path: Path, handle: int) -> bool:
    """Whether the locked file is the one at `path`: a purge may have removed it while we waited."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
