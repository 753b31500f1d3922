"""The tiny checkpoints: the same bytes everywhere, and of the right shape."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest

from spark_pipeline.lab.hub_store import commit_of
from spark_pipeline.lab.tiny_models import tiny_files, tiny_qwen35_files
from spark_pipeline.lab.tiny_tokenizer import VOCAB_SIZE, is_plain_text, token_id, tokenizer_files, vocabulary

Revision = Callable[[int], dict[str, bytes]]


@pytest.mark.parametrize("files", [tiny_files, tiny_qwen35_files])
def test_a_revision_is_the_same_every_time_and_revisions_differ(files: Revision) -> None:
    assert files(1) == files(1)
    first, second = files(1), files(2)
    assert {name for name in first if first[name] != second[name]} == {
        "README.md",
        *(name for name in first if name.endswith(".safetensors")),
    }


def test_commits_do_not_depend_on_the_machine() -> None:
    # Fleets remember revisions that failed or were good: a changed commit here makes such a memory worthless.
    assert commit_of(tiny_files(1)) == "42e8dd5cdca5a007589457263685ba8659b7ee6e"
    assert commit_of(tiny_qwen35_files(1)) == "2025663c5bd261664d70c21f937b142c0e766cf9"


@pytest.mark.parametrize(("files", "parameters"), [(tiny_files, 164_288), (tiny_qwen35_files, 238_500)])
def test_index_and_shards_agree(files: Revision, parameters: int) -> None:
    content = files(1)
    index = json.loads(content["model.safetensors.index.json"])
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        (length,) = struct.unpack("<Q", content[name][:8])
        header = json.loads(content[name][8 : 8 + length])
        del header["__metadata__"]
        assert max(entry["data_offsets"][1] for entry in header.values()) == len(content[name]) - 8 - length
        found.update(dict.fromkeys(header, name))
    assert found == index["weight_map"]
    assert len(set(found.values())) == 3
    assert index["metadata"]["total_size"] == 2 * parameters


def test_the_tokenizer_has_512_different_tokens_and_no_hole() -> None:
    tokens = vocabulary()
    model = json.loads(tokenizer_files()["tokenizer.json"])

    assert len(tokens) == len(set(tokens)) == VOCAB_SIZE
    assert tokens[token_id("<|im_end|>")] == "<|im_end|>"
    ids = [*model["model"]["vocab"].values(), *(token["id"] for token in model["added_tokens"])]
    assert sorted(ids) == list(range(VOCAB_SIZE))
    assert tokens[0] == "!"
    assert is_plain_text(tokens[0])
