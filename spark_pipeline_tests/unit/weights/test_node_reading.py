"""However a file is read, every byte of it is digested once and in order."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from spark_pipeline.weights.node import verify
from spark_pipeline.weights.node.messages import Counter

PAGE = 4096
BLOCK = 2 * PAGE
WINDOW = 4 * BLOCK


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "BLOCK_BYTES", PAGE)
    monkeypatch.setattr(verify, "MAPPED_BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(verify, "WINDOW_BYTES", WINDOW)


class Reader:
    """Digests one file as the program does."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        path.write_bytes(content)
        self.digest = hashlib.sha256()
        self.counter = Counter()
        self.position = 0

    def read(self) -> str:
        with self.path.open("r+b", buffering=0) as stream:
            verify.feed(stream, self.digest, self.counter)
            self.position = stream.tell()
        return self.digest.hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("size", [0, 1, PAGE, BLOCK, BLOCK + 1, WINDOW, WINDOW + 1, 2 * WINDOW + BLOCK + 123])
@pytest.mark.parametrize("advice", [verify.MADV_POPULATE_READ, 9999], ids=["mapped", "read, as by an older kernel"])
def test_a_file_of_any_size_is_digested_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, advice: int
) -> None:
    monkeypatch.setattr(verify, "MADV_POPULATE_READ", advice)
    content = os.urandom(size)
    reader = Reader(tmp_path / "file", content)

    assert reader.read() == sha256(content)
    assert reader.counter.bytes == size
    assert reader.position == size  # where a download goes on writing


@pytest.mark.parametrize("left", [BLOCK, WINDOW - BLOCK, WINDOW + PAGE])
def test_a_file_that_is_cut_short_meanwhile_ends_where_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Without asking for the pages first, the program would die of SIGBUS here."""
    content = os.urandom(2 * WINDOW)
    reader = Reader(tmp_path / "file", content)
    counted: list[int] = []

    def add(count: int) -> None:
        if not counted:
            os.truncate(reader.path, left)
        counted.append(count)

    monkeypatch.setattr(reader.counter, "add", add)

    assert reader.read() == sha256(content[:left])
    assert sum(counted) == left


def test_a_file_that_grows_meanwhile_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(WINDOW + BLOCK)
    reader = Reader(tmp_path / "file", content[:-BLOCK])
    counted: list[int] = []

    def add(count: int) -> None:
        if not counted:
            reader.path.write_bytes(content)
        counted.append(count)

    monkeypatch.setattr(reader.counter, "add", add)

    assert reader.read() == sha256(content)


def test_what_was_read_ahead_stays_in_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[int] = []

    def advise(_stream: int, start: int, length: int, advice: int) -> None:
        assert (start, advice) == (0, os.POSIX_FADV_DONTNEED)
        given_back.append(length)

    monkeypatch.setattr(os, "posix_fadvise", advise)

    Reader(tmp_path / "file", os.urandom(2 * WINDOW + 5)).read()

    assert given_back == [WINDOW, 2 * WINDOW, 2 * WINDOW + 5]
