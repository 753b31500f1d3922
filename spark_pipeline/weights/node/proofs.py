"""What was found in files when they were read last, and how such notes are written."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_pipeline.weights.node.messages import WantedFile

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# All notes are written each time: done for every one of 5,000 files, that was nine tenths of the work.
WRITE_EVERY_SECONDS = 1.0


def boot_id() -> str:
    """Names the time since this machine was switched on; another one after every restart."""
    return BOOT_ID.read_text().strip()


class Proofs:
    """Digests that were found in files, good as long as size, times and inode of the file stay what they were.

    The time of change (ctime) is in the key besides mtime: a tool can set the latter back, not the former. So is the
    machine's boot: after a power cut a file may have its old times and lack bytes that were never written, and what
    was read then may have been the page cache only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot_id = boot_id()
        self._lock = threading.Lock()
        self._written_at = 0.0
        self._unwritten = False
        try:
            self._known: dict[str, list[object]] = json.loads(path.read_text())
        except (OSError, ValueError):
            self._known = {}

    def hold(self, file: WantedFile, status: os.stat_result) -> bool:
        return self._known.get(file.path) == self._proof(file, status)

    def held_before_restart(self, file: WantedFile, status: os.stat_result) -> bool:
        """Whether nothing but the restart of this machine has ended the proof."""
        known = self._known.get(file.path) or [""]
        return known[-1] != self._boot_id and known[:-1] == self._proof(file, status)[:-1]

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """For a block of many `add`: at its end, however it comes, all of them are written."""
        try:
            yield
        except BaseException:
            with suppress(OSError):  # what ended the block says more
                self._write_rest()
            raise
        self._write_rest()

    def add(self, file: WantedFile, status: os.stat_result) -> None:
        """In a block of `gathered`. A program that is killed loses a second's proofs, and reads those files again."""
        with self._lock:
            self._known[file.path] = self._proof(file, status)
            self._unwritten = True
            if time.monotonic() - self._written_at >= WRITE_EVERY_SECONDS:
                self._write()

    def add_all(self, found: Mapping[WantedFile, os.stat_result]) -> None:
        """Written when this returns."""
        with self._lock:
            self._known.update({file.path: self._proof(file, status) for file, status in found.items()})
            self._write()

    def forget(self, file: WantedFile) -> None:
        with self._lock:
            self._known.pop(file.path, None)
            self._write()

    def _write(self) -> None:
        write_json(self._path, self._known, durable=False)
        self._written_at, self._unwritten = time.monotonic(), False

    def _write_rest(self) -> None:
        with self._lock:
            if self._unwritten:
                self._write()

    def files(self) -> tuple[WantedFile, ...]:
        """What was proven here at some time, whether or not it still holds."""
        return tuple(
            WantedFile(path, int(str(known[2])), str(known[0]), str(known[1])) for path, known in self._known.items()
        )

    def _proof(self, file: WantedFile, status: os.stat_result) -> list[object]:
        when = (status.st_mtime_ns, status.st_ctime_ns)
        return [file.algorithm, file.digest, status.st_size, *when, status.st_ino, self._boot_id]


def write_json(path: Path, content: object, *, durable: bool = True) -> None:
    """Whole or not at all; on the disk when this returns, unless a power cut makes it worthless anyway."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as stream:
        stream.write(json.dumps(content))  # json.dump puts it together in Python, piece by piece
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    if durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
