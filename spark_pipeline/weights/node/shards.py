"""Whether a model's index and the headers of its shards agree: asked before an engine finds out after minutes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from spark_pipeline.weights.node.layout import Model
from spark_pipeline.weights.node.messages import Problem, WantedFile, emit

_NAMED = 5  # tensors in one warning
# The format's own limit, as in weights/headers.py: who declares more is no safetensors file, and is not read.
MAX_HEADER_BYTES = 100_000_000


def is_index(file: WantedFile) -> bool:
    return file.path.endswith((".safetensors.index.json", ".bin.index.json"))


def check_indexes(model: Model) -> None:
    """What an index names must be in the manifest: an engine would find out only after loading all the rest.

    Not that of .bin files beside safetensors: engines read the latter, and many a repository has dropped the former
    and kept their index.
    """
    listed = {file.path for file in model.files}
    folders = {_folder(path) for path in listed if path.endswith(".safetensors")}
    for file in filter(is_index, model.files):
        if file.path.endswith(".bin.index.json") and _folder(file.path) in folders:
            continue
        if missing := sorted(set(_shards(model, file).values()) - listed):
            raise Problem("model", f"{file.path} names shards that this revision does not have", ", ".join(missing))


def check_shards(model: Model) -> None:
    """Raises Problem for what no engine could load; warns of what one loads without a word, to answer nonsense."""
    check_indexes(model)
    headers = {file.path: _tensors(model, file) for file in model.files if file.path.endswith(".safetensors")}
    for file in filter(is_index, model.files):
        _warn_of_missing_tensors(file, _shards(model, file), headers)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _shards(model: Model, index: WantedFile) -> dict[str, str]:
    """Tensor -> path of its shard in the model."""
    folder = _folder(index.path)
    try:
        named: dict[str, str] = json.loads(model.path(index).read_bytes())["weight_map"]
        return {tensor: f"{folder}/{shard}" if folder else str(shard) for tensor, shard in named.items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Problem("model", f"{index.path} is not an index of shards", repr(error)) from error


def _warn_of_missing_tensors(
    index: WantedFile, shards: Mapping[str, str], headers: Mapping[str, frozenset[str]]
) -> None:
    """vLLM 0.32 leaves a missing linear layer or embedding uninitialised, says nothing, and answers with empty text.
    Not an error: nobody misses a tensor that the model's class never asks for."""
    missing = [
        f"{tensor} in {shard}"
        for tensor, shard in sorted(shards.items())
        if shard in headers and tensor not in headers[shard]
    ]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        emit(
            "note",
            text=f"warning: {index.path} names tensors that their shards lack: {', '.join(missing[:_NAMED])}{more}. "
            "An engine may load such a model without a word and answer with empty text",
        )


def _tensors(model: Model, file: WantedFile) -> frozenset[str]:
    """The names in a header. A safetensors file is 8 bytes of length, a JSON header, and data exactly as long as the
    header says."""
    with model.path(file).open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > min(MAX_HEADER_BYTES, file.size_bytes - 8):
            raise Problem("model", f"{file.path} is no safetensors file", f"header of {length} bytes")
        try:
            header = json.loads(stream.read(length))
            tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
            end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        except (ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
            raise Problem("model", f"{file.path} has no readable safetensors header", repr(error)) from error
    if 8 + length + end != file.size_bytes:
        raise Problem(
            "model",
            f"{file.path}: header and length disagree",
            f"the header ends at byte {8 + length + end}, the file at {file.size_bytes}",
        )
    return frozenset(tensors)
