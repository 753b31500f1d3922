"""The headers of safetensors files: every tensor's name, data type and size, in a few kilobytes of many gigabytes.

A file is eight bytes with the header's length, a JSON header, then the tensors; see the format's page in the
documentation of safetensors. Offsets count from the end of the header.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import BaseModel, NonNegativeInt, TypeAdapter, ValidationError, model_validator

from spark_pipeline.errors import WeightsError
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.hub_files import read_part
from spark_pipeline.weights.manifest import Manifest, ManifestFile

# Most headers are shorter (97 % of those on the public hub, says huggingface_hub): one request is enough for them.
FIRST_BYTES = 100_000
# The format's own limit: who declares more is no safetensors file.
MAX_HEADER_BYTES = 100_000_000
_AT_ONCE = 8
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Tensor:
    """One entry of a header. `elements`: stored ones; a packed type holds several weights in one."""

    name: str
    dtype: str
    elements: int
    size_bytes: int


def read_headers(hub: Hub, manifest: Manifest, files: Sequence[ManifestFile]) -> list[Tensor]:
    """All tensors of `files`, several files at once.

    Raises:
        HubError: the hub refuses, or cannot be reached.
        WeightsError: a header does not parse, or does not describe the file that it stands in.
    """
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headers")
    try:
        found = list(pool.map(lambda file: _read_header(hub, manifest, file), files))
    finally:
        pool.shutdown(cancel_futures=True)  # the first that fails spares the hub the rest
    return [tensor for tensors in found for tensor in tensors]


def _read_header(hub: Hub, manifest: Manifest, file: ManifestFile) -> list[Tensor]:
    def part(start: int, stop: int) -> bytes:
        return read_part(hub, manifest, file, range(start, min(stop, file.size_bytes)))

    try:
        if file.size_bytes < _LENGTH_BYTES:
            raise ValueError(f"the file has {file.size_bytes} bytes")
        content = part(0, FIRST_BYTES)
        end = _header_end(content, file.size_bytes)
        if end > len(content):
            content += part(len(content), end)
        return parse_header(content[_LENGTH_BYTES:end], data_bytes=file.size_bytes - end)
    except ValueError as error:
        raise WeightsError(
            f"the header of {file.path} in {manifest.repo} does not parse",
            observed=f"{error} (at {manifest.commit})",
            remedy="no server can load this file: name another model.revision, or tell the repository's owner",
        ) from None


def _header_end(content: bytes, size_bytes: int) -> int:
    """Where the tensors begin. Raises ValueError."""
    if len(content) < _LENGTH_BYTES:
        raise ValueError(f"the hub sent {len(content)} bytes of it")
    (length,) = struct.unpack("<Q", content[:_LENGTH_BYTES])
    if not 0 < length <= min(MAX_HEADER_BYTES, size_bytes - _LENGTH_BYTES):
        raise ValueError(f"it says that it has {length} bytes, in a file of {size_bytes}")
    return _LENGTH_BYTES + length


def parse_header(text: bytes, *, data_bytes: int) -> list[Tensor]:
    """The tensors that a header names, in its order.

    Args:
        data_bytes: what follows the header in the file; the tensors must fill it, no more and no less, as every
            loader demands ("file not fully covered").

    Raises:
        ValueError: it is not JSON, or not a header, or of another file.
    """
    header = json.loads(text)
    if isinstance(header, dict):
        header.pop("__metadata__", None)
    try:
        entries = _ENTRIES.validate_python(header)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{': '.join(map(str, first['loc'][:2])) or 'it'}: {first['msg']}") from None
    end = max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if end != data_bytes:
        raise ValueError(f"its tensors end after {end} bytes of data, the file has {data_bytes}")
    return [
        Tensor(name, entry.dtype, math.prod(entry.shape), entry.data_offsets[1] - entry.data_offsets[0])
        for name, entry in entries.items()
    ]


class _Entry(BaseModel):
    """What a header says of one tensor."""

    dtype: str
    shape: tuple[NonNegativeInt, ...]
    data_offsets: tuple[NonNegativeInt, NonNegativeInt]

    @model_validator(mode="after")
    def _ends_behind_its_start(self) -> _Entry:
        if self.data_offsets[1] < self.data_offsets[0]:
            raise ValueError("it ends before it begins")
        return self


_ENTRIES = TypeAdapter(dict[str, _Entry])
