"""A file on its way: what is there of it, and the digest of just that."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_pipeline.weights.node.layout import follow_no_link
from spark_pipeline.weights.node.messages import WantedFile, disk_problem
from spark_pipeline.weights.node.verify import WINDOW_BYTES, feed, give_back, new_digest, sync


class Part:
    """Grows at its end only. The digest holds what was written, never what was only received.

    Raises:
        Problem: 'space' or 'files', from every method: a disk that refuses is no matter of the connection, and what
            it holds after that is known only by reading it again, which the next run does.
    """

    def __init__(self, path: Path, file: WantedFile) -> None:
        self.path = path
        self.file = file
        self.digest: Any = new_digest(file)
        self._unsynced = 0
        with self._disk():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = io.FileIO(path, "a+", opener=follow_no_link)
            self.size_bytes = os.fstat(self._stream.fileno()).st_size
        if self.size_bytes > file.size_bytes:
            self.restart()
        with self._disk():
            feed(self._stream, self.digest)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        with self._disk(), self._stream:
            sync(self._stream)

    @property
    def is_complete(self) -> bool:
        return self.size_bytes == self.file.size_bytes

    def append(self, block: bytes) -> None:
        rest = memoryview(block)
        with self._disk():
            while rest:
                rest = rest[self._stream.write(rest) :]
            self._unsynced += len(block)
            if self._unsynced >= WINDOW_BYTES:
                self._unsynced = 0
                os.fdatasync(self._stream.fileno())
                give_back(self._stream)
        self.digest.update(block)
        self.size_bytes += len(block)

    def restart(self) -> None:
        with self._disk():
            self._stream.truncate(0)
        self.digest = new_digest(self.file)
        self.size_bytes = 0

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_problem(f"{self.file.path} cannot be written", error) from error
