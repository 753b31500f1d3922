"""However a file is read, every byte of it is digested once and in order."""

from __future__ import annotations

import hashlib
import os

import pytest

from spark_pipeline.weights.node import verify

BLOCK = verify.BLOCK_BYTES


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1, 2 * BLOCK + 12345])
def test_a_file_of_any_size_is_digested_as_it_is(tmp_path, size: int):
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    digest = hashlib.sha256()

    with (tmp_path / "file").open("r+b", buffering=0) as stream:
        verify.feed(stream, digest)
        assert stream.tell() == size  # where a download goes on writing

    assert digest.digest() == hashlib.sha256(content).digest()


def test_reading_begins_where_the_file_stands(tmp_path):
    content = os.urandom(BLOCK + 5000)
    (tmp_path / "file").write_bytes(content)
    digest = hashlib.sha256()

    with (tmp_path / "file").open("rb", buffering=0) as stream:
        stream.seek(1234)
        verify.feed(stream, digest)

    assert digest.digest() == hashlib.sha256(content[1234:]).digest()
