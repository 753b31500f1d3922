"""What the program on a node finds out about files, and what it never believes."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import threading
import types
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from spark_pipeline.errors import VerificationError, WeightsError
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.weights import headers
from spark_pipeline.weights.node import shards
from spark_pipeline.weights.node.messages import Source
from spark_pipeline.weights.node_program import call, request

SHARD = os.urandom(50_000)
FILES = {"config.json": b"{}", "model.bin": SHARD}


def test_looking_changes_nothing_and_reads_nothing(node_with):
    node = node_with(FILES)

    report = node.do("inspect")

    assert [file.path for file in report.absent] == ["config.json", "model.bin"]
    assert (report.obstacle, report.unwritable, report.sealed) == ("", "", "")
    assert report.free_bytes > 0
    assert not node.weights_dir.exists()


def test_a_repeat_costs_one_lstat_a_file_and_opens_none(node_with, monkeypatch):
    node = node_with(FILES)
    node.download()
    node.do("seal")
    asked: list[str] = []
    opened: list[str] = []

    def remember(seen: list[str], function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, *words: Any, **more: Any) -> Any:
            seen.append(str(path))
            return function(path, *words, **more)

        return wrapped

    monkeypatch.setattr(os, "lstat", remember(asked, os.lstat))
    monkeypatch.setattr(io, "open", remember(opened, io.open))  # what Path.open calls

    assert node.do("inspect").unproven == ()

    files = [str(node.directory / path) for path in FILES]
    assert sorted(path for path in asked if path in files) == files
    assert opened
    assert not [path for path in opened if path in files]


def test_files_that_were_put_there_by_hand_count_only_after_they_were_read(node_with):
    node = node_with(FILES)
    node.directory.mkdir(parents=True)
    for path, content in FILES.items():
        (node.directory / path).write_bytes(content)

    assert node.do("inspect").unproven == ("config.json", "model.bin")
    assert node.do("verify").hashed_files == 2
    assert node.do("inspect").unproven == ()


def test_a_flipped_byte_is_found_though_size_and_mtime_are_the_old_ones(node_with):
    node = node_with(FILES)
    node.download()
    node.do("seal")
    _flip(node.directory / "model.bin", 1234)

    assert node.do("inspect").unproven == ("model.bin",)
    report = node.do("verify")

    assert [bad.path for bad in report.set_aside] == ["model.bin"]
    assert node.manifest.files[1].sha256 in report.set_aside[0].expected
    assert [file.path for file in report.absent] == ["model.bin"]
    assert not node.marker.exists()


def test_a_file_cut_short_with_an_old_mtime_is_wrong_without_being_read(node_with):
    node = node_with(FILES)
    node.download()
    path = node.directory / "model.bin"
    before = path.stat()
    os.truncate(path, 999)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    report = node.do("inspect")

    assert [(bad.path, bad.actual) for bad in report.bad] == [("model.bin", "999 bytes")]


def test_on_demand_every_byte_is_read_again(node_with):
    node = node_with(FILES)
    node.download()

    report = node.do("verify", rehash=True)

    assert (report.hashed_files, report.hashed_bytes) == (2, len(SHARD) + 2)


def test_notes_of_an_earlier_run_that_are_torn_are_no_proof(node_with):
    node = node_with(FILES)
    node.download()
    (node.directory / ".spark_pipeline" / "proofs.json").write_text('{"model.bin": [')

    assert len(node.do("inspect").unproven) == 2


def test_a_symlink_in_the_way_is_refused_and_left_alone(node_with, tmp_path):
    node = node_with(FILES)
    node.directory.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere.bin"
    elsewhere.write_bytes(SHARD)
    (node.directory / "model.bin").symlink_to(elsewhere)

    assert "model.bin is a symlink to" in node.do("inspect").obstacle
    with pytest.raises(WeightsError, match="stands where the model should lie"):
        node.download()
    assert elsewhere.read_bytes() == SHARD


def test_a_symlinked_folder_below_the_weights_directory_is_refused(node_with, tmp_path):
    node = node_with(FILES)
    (tmp_path / "other").mkdir()
    node.weights_dir.mkdir()
    (node.weights_dir / "lab").symlink_to(tmp_path / "other")

    assert "is a symlink" in node.do("inspect").obstacle
    with pytest.raises(WeightsError):
        node.do("verify")
    assert list((tmp_path / "other").iterdir()) == []


def test_the_weights_directory_itself_may_be_a_link_to_another_disk(node_with, tmp_path):
    node = node_with(FILES)
    (tmp_path / "disk").mkdir()
    node.weights_dir.symlink_to(tmp_path / "disk")

    assert node.download().absent == ()


def test_a_path_that_leaves_the_directory_is_refused_by_the_node_itself(node_with):
    node = node_with(FILES)
    bad = json.loads(request("download", node.manifest, str(node.weights_dir)).to_json())
    bad["files"][0]["path"] = "../../escaped"

    class Raw:
        def to_json(self) -> str:
            return json.dumps(bad)

        def __getattr__(self, name: str):
            return bad[name]

    with pytest.raises(WeightsError, match="would leave the model's directory"):
        call(node.host, Raw(), progress=print)  # type: ignore[arg-type]


def test_the_marker_names_commit_and_manifest_and_comes_last(node_with):
    node = node_with(FILES)
    with pytest.raises(VerificationError):
        node.do("seal")
    assert not node.marker.exists()

    node.download()
    assert node.do("inspect").sealed == ""
    node.do("seal")

    assert node.do("inspect").sealed == node.manifest.sha256
    marker = json.loads(node.marker.read_text())
    assert (marker["commit"], len(marker["files"])) == (node.manifest.commit, 2)


def test_a_second_run_that_finds_all_there_leaves_the_marker(node_with):
    node = node_with(FILES)
    node.download()
    node.do("seal")

    node.download()

    assert node.do("inspect").sealed == node.manifest.sha256


@pytest.mark.parametrize("flag", [0, os.ST_RDONLY])
def test_a_read_only_disk_is_told_as_such_and_not_as_a_matter_of_owners(node_with, monkeypatch, flag):
    node = node_with(FILES)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_flag=flag))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1))  # it asks statvfs too

    said = node.do("inspect").unwritable

    assert ("read-only" in said, "belongs to" in said) == (bool(flag), not flag)


def test_a_file_that_the_disk_did_not_take_is_read_from_the_disk_by_the_next_run(node_with, monkeypatch):
    node = node_with(FILES)
    node.directory.mkdir(parents=True)
    for path, content in FILES.items():
        (node.directory / path).write_bytes(content)
    forgotten: list[int] = []

    def fail(_descriptor: int) -> None:
        forgotten.clear()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *_: forgotten.append(descriptor))

    with pytest.raises(WeightsError):
        node.do("verify")

    assert forgotten
    assert len(node.do("inspect").unproven) == 2


def test_an_index_that_names_a_shard_the_revision_lacks_is_never_sealed(manifest_of, node_of):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    files = {"model.safetensors.index.json": json.dumps(index).encode(), "model-1.safetensors": _safetensors(8)}
    node = node_of(manifest_of(files))
    node.directory.mkdir(parents=True)
    for path, content in files.items():
        (node.directory / path).write_bytes(content)
    node.do("verify")

    with pytest.raises(VerificationError, match="shards that this revision does not have") as caught:
        node.do("seal")
    assert caught.value.observed == "model-2.safetensors"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"\xff" * 100, "is no safetensors file", id="header longer than the file"),
        pytest.param((4).to_bytes(8, "little") + b"what", "no readable safetensors header", id="header is no JSON"),
        pytest.param(b"", "is no safetensors file", id="empty"),
    ],
)
def test_a_shard_that_no_engine_could_read_is_never_sealed(manifest_of, node_of, content, said):
    node = node_of(manifest_of({"model.safetensors": content}))
    node.directory.mkdir(parents=True)
    (node.directory / "model.safetensors").write_bytes(content)
    node.do("verify")

    with pytest.raises(VerificationError, match=said):
        node.do("seal")


def test_a_header_longer_than_the_format_allows_is_not_read(manifest_of, node_of, monkeypatch):
    monkeypatch.setattr(shards, "MAX_HEADER_BYTES", 10)
    content = _safetensors(8)
    node = node_of(manifest_of({"model.safetensors": content}))
    node.directory.mkdir(parents=True)
    (node.directory / "model.safetensors").write_bytes(content)
    node.do("verify")

    with pytest.raises(VerificationError, match="is no safetensors file"):
        node.do("seal")


def test_the_limit_of_a_header_is_the_one_that_the_compatibility_report_knows():
    assert shards.MAX_HEADER_BYTES == headers.MAX_HEADER_BYTES


def test_a_shard_shorter_than_its_header_says_is_never_sealed(node_with):
    node = node_with({"model.safetensors": _safetensors(8)[:-1]})
    node.download()

    with pytest.raises(VerificationError, match="header and length disagree"):
        node.do("seal")


def test_a_good_model_is_sealed(node_with):
    index = {"weight_map": {"a": "model-1.safetensors"}}
    node = node_with(
        {"model.safetensors.index.json": json.dumps(index).encode(), "model-1.safetensors": _safetensors(8)}
    )
    node.download()

    assert node.do("seal").sealed == node.manifest.sha256


def test_a_second_run_on_the_same_model_waits_for_the_first(node_with):
    import fcntl

    node = node_with(FILES)
    node.host = LocalHost("head")
    node.do("verify")
    done = threading.Event()

    def second() -> None:
        node.download()
        done.set()

    with (node.directory / ".spark_pipeline" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=second)
        thread.start()
        assert not done.wait(2)
    thread.join(20)

    assert done.is_set()
    assert any("another run works on" in note for note in node.notes)


def test_the_head_hands_files_to_a_peer_that_knows_the_password_and_to_nobody_else(node_with, tmp_path):
    head = node_with(FILES)
    head.download()
    ports: list[int] = []
    listening = threading.Event()

    def on_port(port: int) -> None:
        ports.append(port)
        listening.set()

    def give() -> None:
        asked = request("serve", head.manifest, str(head.weights_dir), source=Source("", "pass"), listen_on="127.0.0.1")
        call(LocalHost("head"), asked, progress=print, on_port=on_port)

    giving = threading.Thread(target=give)
    giving.start()
    assert listening.wait(20)
    url = f"http://127.0.0.1:{ports[0]}"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{url}/model.bin", timeout=5)

    source = Source(url, "pass")
    peer = request("download", head.manifest, str(tmp_path / "peer"), source=source)
    report = call(LocalHost("peer"), peer, progress=print)
    call(LocalHost("head"), request("done", head.manifest, str(head.weights_dir), source=source), progress=print)
    giving.join(20)

    assert (report.absent, report.downloaded_bytes) == ((), len(SHARD) + 2)
    assert not giving.is_alive()


def _flip(path, offset: int) -> None:
    """One byte, and the times as they were."""
    before = path.stat()
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _safetensors(count: int) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(count)
