"""The bytes of one file as a hub lets them out: read block by block, never a whole file in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.lab.hub_faults import Fault


@dataclass(frozen=True)
class Body:
    """A part of something that may be far larger than memory, or of a file that is mostly a hole.

    Args:
        location: of the file on disk.
        size_bytes: what the server says the file has; past its real end the bytes are zeros.
        part: which bytes of it are sent.
        flipped: which byte has all its bits the other way round; None: none.
    """

    location: Path
    size_bytes: int
    part: range
    flipped: int | None = None

    def blocks(self, block_bytes: int) -> Iterator[bytes]:
        """The part in order, each block as long as asked for but the last."""
        with self.location.open("rb") as stream:
            stream.seek(self.part.start)
            for start in range(self.part.start, self.part.stop, block_bytes):
                wanted_bytes = min(block_bytes, self.part.stop - start)
                block = stream.read(wanted_bytes).ljust(wanted_bytes, b"\0")
                if self.flipped is not None and start <= self.flipped < start + wanted_bytes:
                    index = self.flipped - start
                    block = block[:index] + bytes([block[index] ^ 0xFF]) + block[index + 1 :]
                yield block


def whole(location: Path, file_bytes: int, faults: Mapping[str, Fault]) -> Body:
    """A file as these faults let it out: another size, or one byte flipped."""
    size_bytes, flipped = file_bytes, None
    if "wrong_size" in faults:
        size_bytes = max(0, file_bytes + faults["wrong_size"].size_delta)
    if "flip" in faults and size_bytes:
        wanted = faults["flip"].offset
        flipped = size_bytes // 2 if wanted is None else min(wanted, size_bytes - 1)
    return Body(location, size_bytes, range(size_bytes), flipped)
