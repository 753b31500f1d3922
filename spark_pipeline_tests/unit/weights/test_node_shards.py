"""An index and the headers of its shards: what they disagree about is said before an engine answers nonsense."""

from __future__ import annotations

import json

import pytest

from spark_pipeline.errors import VerificationError


def safetensors(*tensors: str) -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        **{name: {"dtype": "U8", "shape": [4], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(tensors)},
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4 * len(tensors))


def index(folder: str = "", **shard_of: str) -> dict[str, bytes]:
    return {f"{folder}model.safetensors.index.json": json.dumps({"weight_map": shard_of}).encode()}


@pytest.fixture
def sealed(manifest_of, node_of):
    """Seal a model of these files; what was said meanwhile."""

    def do(files: dict[str, bytes]) -> list[str]:
        node = node_of(manifest_of(files))
        for path, content in files.items():
            (node.directory / path).parent.mkdir(parents=True, exist_ok=True)
            (node.directory / path).write_bytes(content)
        node.do("verify")
        assert node.do("seal").sealed == node.manifest.sha256
        return [note for note in node.notes if "warning" in note]

    return do


def test_a_tensor_that_its_shard_lacks_is_named_with_the_shard_and_the_model_is_still_sealed(sealed):
    said = sealed(
        {
            **index(embed="model-1.safetensors", up_proj="model-2.safetensors", norm="model-2.safetensors"),
            "model-1.safetensors": safetensors("embed"),
            "model-2.safetensors": safetensors("norm"),
        }
    )

    (line,) = said
    assert "model.safetensors.index.json names tensors that their shards lack: up_proj in model-2.safetensors." in line


def test_a_tensor_that_lies_in_another_shard_than_the_index_says_is_named(sealed):
    said = sealed(
        {
            **index(a="model-1.safetensors", b="model-2.safetensors"),
            "model-1.safetensors": safetensors("a", "b"),
            "model-2.safetensors": safetensors("c"),
        }
    )

    assert "b in model-2.safetensors" in said[0]


def test_of_many_the_first_are_named_and_the_rest_counted(sealed):
    names = {f"t{number}": "model-1.safetensors" for number in range(8)}

    said = sealed({**index(**names), "model-1.safetensors": safetensors("t0")})

    assert "t1 in model-1.safetensors, " in said[0]
    assert "t5 in model-1.safetensors and 2 more." in said[0]
    assert "t6" not in said[0]


def test_a_model_in_a_folder_is_looked_at_in_its_folder(sealed):
    files = {
        **index("text/", a="m.safetensors", b="m.safetensors"),
        "text/m.safetensors": safetensors("a"),
        "m.safetensors": safetensors("b"),
    }

    assert "b in text/m.safetensors" in sealed(files)[0]


def test_where_they_agree_nothing_is_said(sealed):
    files = {**index(a="m.safetensors", b="m.safetensors"), "m.safetensors": safetensors("a", "b", "not_in_the_index")}

    assert sealed(files) == []


def test_an_index_of_bin_files_is_held_against_the_revision_too(sealed):
    files = {"pytorch_model.bin.index.json": b'{"weight_map": {"a": "m-1.bin", "b": "m-2.bin"}}', "m-1.bin": b"pickle"}

    with pytest.raises(VerificationError, match=r"pytorch_model\.bin\.index\.json names shards") as caught:
        sealed(files)
    assert caught.value.observed == "m-2.bin"
    assert sealed({**files, "m-2.bin": b"what is in these is not looked at"}) == []


def test_an_index_of_bin_files_that_is_left_over_beside_safetensors_is_nobodys_business(sealed):
    files = {"pytorch_model.bin.index.json": b'{"weight_map": {"a": "m-1.bin"}}', "m.safetensors": safetensors("a")}

    assert sealed(files) == []
