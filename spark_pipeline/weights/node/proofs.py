"""What was found in files when they were read last, and how such notes are written."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from spark_pipeline.weights.node.messages import WantedFile

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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

    def add(self, file: WantedFile, status: os.stat_result) -> None:
        """Written at once: a run that is ended keeps what it has proven."""
        self.add_all({file: status})

    def add_all(self, found: Mapping[WantedFile, os.stat_result]) -> None:
        with self._lock:
            self._known.update({file.path: self._proof(file, status) for file, status in found.items()})
            write_json(self._path, self._known, durable=False)

    def forget(self, file: WantedFile) -> None:
        with self._lock:
            self._known.pop(file.path, None)
            write_json(self._path, self._known, durable=False)

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
        json.dump(content, stream)
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
