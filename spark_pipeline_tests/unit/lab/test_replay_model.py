"""The repository of real size: everything that is asked before a download, and next to nothing on disk."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from spark_pipeline.lab import hub_store
from spark_pipeline.lab.content import publish_replay
from spark_pipeline.lab.hub_server import ACCESS_LOG, HubServer
from spark_pipeline.lab.hub_store import read_refs, resolve, revisions
from spark_pipeline.lab.replay_model import NO_ARCHITECTURES, QWEN35_122B

ENOUGH_FOR_ASKING_BYTES = 30_000_000


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    server = HubServer("127.0.0.1", 0, tmp_path_factory.mktemp("hub"))
    publish_replay(server.root)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def api(hub: HubServer) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=False)


def test_it_is_published_on_little_disk_with_the_same_commit_everywhere(tmp_path: Path) -> None:
    big, unnamed = publish_replay(tmp_path)

    assert (big.repo, unnamed.repo) == (QWEN35_122B, NO_ARCHITECTURES)
    assert big.commits == ("32bdd0163066b73ebea30a64907d4bd3923485f4",)
    assert unnamed.commits == ("c5f872b8a02aeb6442422bfa11150634f48d1b43",)
    assert read_refs(tmp_path, QWEN35_122B) == {"main": big.commits[0]}
    files = [path for path in (tmp_path / QWEN35_122B).rglob("*") if path.is_file()]
    assert sum(path.stat().st_blocks * 512 for path in files) < ENOUGH_FOR_ASKING_BYTES
    assert publish_replay(tmp_path) == (big, unnamed)
    assert revisions(tmp_path, QWEN35_122B) == list(big.commits)


def test_the_hub_tells_sizes_and_parameters_without_reading_the_weights(
    api: HfApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []  # hashing 124 GB would take minutes

    def digests(location: Path, *known: int) -> tuple[str, str]:
        read.append(location.name)
        return digests_of(location, *known)

    digests_of = hub_store._digests
    monkeypatch.setattr(hub_store, "_digests", digests)

    info = api.model_info(QWEN35_122B, files_metadata=True)

    assert read
    assert not [name for name in read if name.endswith(".safetensors")]
    assert info.siblings is not None
    assert info.safetensors is not None
    shards = [file for file in info.siblings if file.rfilename.endswith(".safetensors")]
    assert len(shards) == 39
    assert 119e9 < sum(file.size or 0 for file in shards) < 125e9
    assert len({file.lfs.sha256 for file in shards if file.lfs}) == 39
    assert info.safetensors.total == 123_135_115_760


def test_headers_alone_say_what_the_model_takes(api: HfApi, hub: HubServer) -> None:
    log = hub.root / ACCESS_LOG
    before = len(log.read_text().splitlines()) if log.exists() else 0

    found = api.get_safetensors_metadata(QWEN35_122B)

    sizes: Counter[str] = Counter()
    for file in found.files_metadata.values():
        for name, tensor in file.tensors.items():
            begin, end = tensor.data_offsets
            sizes[tensor.dtype] += end - begin
            sizes["extra head"] += (end - begin) * name.startswith("mtp.")
    assert sizes == {"F8_E4M3": 121_676_759_040, "BF16": 2_916_713_440, "extra head": 2_543_664_640}
    lines = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    assert sum(line["sent_bytes"] for line in lines) < ENOUGH_FOR_ASKING_BYTES


def test_index_shards_and_configuration_agree(hub: HubServer) -> None:
    revision = resolve(hub.root, QWEN35_122B, "main")
    assert revision is not None
    index = json.loads((revision.directory / "model.safetensors.index.json").read_text())
    config = json.loads((revision.directory / "config.json").read_text())
    declared: dict[str, str] = {}
    for file in revision.files():
        if file.path.endswith(".safetensors"):
            with file.location.open("rb") as stream:
                header_bytes = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(header_bytes))
            del header["__metadata__"]
            assert 8 + header_bytes + max(t["data_offsets"][1] for t in header.values()) == file.size_bytes
            declared |= dict.fromkeys(header, file.path)

    assert declared == index["weight_map"]
    assert config["architectures"] == ["Qwen3_5MoeForConditionalGeneration"]
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
    assert config["text_config"]["layer_types"].count("full_attention") == 12


def test_the_other_repository_names_no_architecture_and_is_whole_besides(hub: HubServer) -> None:
    revision = resolve(hub.root, NO_ARCHITECTURES, "main")
    assert revision is not None

    config = json.loads((revision.directory / "config.json").read_text())

    assert "architectures" not in config
    assert config["model_type"] == "qwen3"
    assert {"tokenizer.json", "model.safetensors.index.json"} <= {file.path for file in revision.files()}
