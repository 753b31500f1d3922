"""Files of a checkpoint with random weights, written by hand: safetensors is a length, a JSON header and the data.

Several shards with an index, so that a download has something to verify. Python's own generator gives the same
numbers on every machine and with every version; numpy's is not promised to.
"""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_pipeline.lab.tiny_tokenizer import END_OF_TURN, PADDING, is_plain_text, token_id, tokenizer_files, vocabulary

SHARDS = 3


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint. `fill`: None for random values, else the one value of all elements."""

    name: str
    shape: tuple[int, ...]
    fill: float | None = None


def checkpoint_files(seed: str, config: Mapping[str, Any], tensors: Iterable[Tensor]) -> dict[str, bytes]:
    """Every file of a repository: configuration, tokenizer, shards and their index. Equal seeds give equal bytes."""
    data = {tensor.name: (tensor, _values(tensor, seed)) for tensor in tensors}
    total_bytes = sum(len(values) for _, values in data.values())
    shards: list[dict[str, tuple[Tensor, bytes]]] = [{} for _ in range(SHARDS)]
    done_bytes = 0
    for name, (tensor, values) in data.items():
        shards[done_bytes * SHARDS // total_bytes][name] = (tensor, values)
        done_bytes += len(values)
    files = {f"model-{number:05}-of-{SHARDS:05}.safetensors": shard for number, shard in enumerate(shards, start=1)}
    weight_map = {name: file for file, shard in files.items() for name in shard}
    generation = {"eos_token_id": token_id(END_OF_TURN), "pad_token_id": token_id(PADDING)}
    return {
        "README.md": f"# {seed}\n\nRandom weights, for tests.\n".encode(),
        "config.json": _json(config),
        "generation_config.json": _json(generation),
        "model.safetensors.index.json": _json({"metadata": {"total_size": total_bytes}, "weight_map": weight_map}),
        **tokenizer_files(),
        **{file: _safetensors(shard) for file, shard in files.items()},
    }


def _values(tensor: Tensor, seed: str) -> bytes:
    """bfloat16 values: the upper two bytes of each float32."""
    count = math.prod(tensor.shape)
    if tensor.fill is not None:
        numbers = array("f", [tensor.fill]) * count
    else:
        draw = random.Random(f"{seed}:{tensor.name}").random  # noqa: S311 - the same bytes everywhere is the point
        spread = 2 * math.sqrt(3 / math.prod(tensor.shape[1:]))  # variance 1 / inputs: activations keep their size
        numbers = array("f", ((draw() - 0.5) * spread for _ in range(count)))
    if tensor.name == "lm_head.weight":
        # Greedy answers are then readable and as long as asked for: no token but plain text ever has the most points.
        width = tensor.shape[1]
        for index, token in enumerate(vocabulary()):
            if not is_plain_text(token):
                numbers[index * width : (index + 1) * width] = array("f", bytes(4 * width))
    raw = numbers.tobytes()
    upper = bytearray(2 * count)
    upper[0::2], upper[1::2] = raw[2::4], raw[3::4]
    return bytes(upper)


def _safetensors(tensors: Mapping[str, tuple[Tensor, bytes]]) -> bytes:
    """One file in the safetensors format: length of the header, JSON header, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (tensor, values) in tensors.items():
        end = offset + len(values)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(values for _, values in tensors.values())


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
