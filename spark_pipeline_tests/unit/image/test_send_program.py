"""The program that sends an image: real processes, an image saved by a real engine, `docker` played by `cat`."""

from __future__ import annotations

import io
import json
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from spark_pipeline.image import send_program
from spark_pipeline.image.layers import chain_ids
from spark_pipeline.image.send_program import Filter, chain_of, copy
from spark_pipeline_tests.unit.image.samples import LAYERS, RECORDED


@pytest.fixture(scope="module")
def saved() -> bytes:
    """`docker save` of Docker 20.10."""
    return lzma.decompress((RECORDED / "save_20.10.tar.xz").read_bytes())


@pytest.fixture(scope="module")
def newer(saved: bytes) -> bytes:
    """The same layers as Docker 25 and later lay them out: blobs named by their diff id, and links for old readers."""
    layout = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(saved)) as old, tarfile.open(fileobj=layout, mode="w") as new:
        (manifest,) = json.loads(read(old, "manifest.json"))
        config = read(old, manifest["Config"])
        blobs = {f"blobs/sha256/{manifest['Config'].removesuffix('.json')}": config}
        for layer, path in zip(LAYERS, manifest["Layers"], strict=True):
            blobs[f"blobs/sha256/{layer.removeprefix('sha256:')}"] = read(old, path)
        for name, content in {**blobs, "manifest.json": b"[]", "oci-layout": b"{}"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return layout.getvalue()


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def contents(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {member.name: read(opened, member.name) for member in opened if member.isfile()}


def filtered(archive: bytes, leave_out: dict[str, str]) -> bytes:
    sink = io.BytesIO()
    copy(io.BytesIO(archive), sink, Filter(leave_out))
    return sink.getvalue()


def lowest(count: int) -> dict[str, str]:
    return dict(list(zip(chain_ids(LAYERS), LAYERS, strict=True))[:count])


def layer_paths(archive: bytes) -> list[str]:
    return json.loads(contents(archive)["manifest.json"])[0]["Layers"]


def test_every_layer_of_a_saved_image_is_identified_by_its_chain(saved: bytes) -> None:
    chains = chain_ids(LAYERS)
    jsons = [contents(saved)[path.replace("layer.tar", "json")] for path in layer_paths(saved)]
    assert [chain_of(text, chains) for text in jsons] == list(chains)


def test_a_layer_that_is_none_of_the_known_ones_is_not_identified(saved: bytes) -> None:
    (first, *_) = [contents(saved)[path.replace("layer.tar", "json")] for path in layer_paths(saved)]
    assert chain_of(first, ["sha256:" + "0" * 64]) is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_exactly_the_known_layers_are_left_out_and_the_rest_is_unchanged(saved: bytes, count: int) -> None:
    before, after = contents(saved), contents(filtered(saved, lowest(count)))
    assert set(before) - set(after) == set(layer_paths(saved)[:count])
    assert all(before[name] == content for name, content in after.items())


@pytest.mark.parametrize("count", [1, 2])
def test_the_layout_of_newer_engines_is_understood_too(newer: bytes, count: int) -> None:
    before, after = contents(newer), contents(filtered(newer, lowest(count)))
    assert set(before) - set(after) == {f"blobs/sha256/{layer.partition(':')[2]}" for layer in LAYERS[:count]}


def test_with_nothing_to_leave_out_everything_goes_along(saved: bytes) -> None:
    assert contents(filtered(saved, {})) == contents(saved)


class Run:
    """The program as it runs on a head whose `docker` is a script."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir()

    def docker(self, script: str) -> None:
        path = self.bin / "docker"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def lines(self, targets: dict[str, list[str]], leave_out: dict[str, str] | None = None) -> list[dict]:
        order = {"references": ["own:1", "engine:1"], "leave_out": leave_out or {}, "targets": targets}
        done = subprocess.run(
            [sys.executable, "-", json.dumps(order)],
            input=Path(send_program.__file__).read_bytes(),
            capture_output=True,
            env={"PATH": f"{self.bin}:/usr/bin:/bin"},
            timeout=30,
        )
        assert done.stderr == b""
        self.status = done.returncode
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def run(tmp_path: Path, saved: bytes) -> Run:
    (tmp_path / "saved.tar").write_bytes(saved)
    run = Run(tmp_path)
    run.docker(f'[ "$*" = "save own:1 engine:1" ] && cat {tmp_path}/saved.tar')
    return run


def into(path: Path) -> list[str]:
    return ["sh", "-c", f"cat > {path} && echo loaded"]


def test_one_stream_reaches_every_target(run: Run, saved: bytes, tmp_path: Path) -> None:
    last = run.lines({"one": into(tmp_path / "1"), "two": into(tmp_path / "2")}, lowest(2))[-1]
    assert contents((tmp_path / "1").read_bytes()) == contents(filtered(saved, lowest(2)))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert last["done"] == {"one": {"status": 0, "said": "loaded"}, "two": {"status": 0, "said": "loaded"}}
    assert last["read"] == len(saved)
    assert last["sent"] == (tmp_path / "1").stat().st_size
    assert last["left_out"] == 2


def test_a_target_that_refuses_does_not_spoil_the_others(run: Run, tmp_path: Path) -> None:
    refusal = ["sh", "-c", "echo open layer.tar: no such file; exit 1"]
    last = run.lines({"one": into(tmp_path / "1"), "two": refusal})[-1]
    assert last["done"]["one"] == {"status": 0, "said": "loaded"}
    assert last["done"]["two"] == {"status": 1, "said": "open layer.tar: no such file"}


def test_when_every_target_refuses_each_tells_why(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "layer.tar").open("wb") as layer:
        layer.truncate(50_000_000)
    run.docker(f"tar -cf - -C {tmp_path} layer.tar")
    last = run.lines({"one": ["sh", "-c", "echo no space left on device; exit 1"]})[-1]
    assert last["done"] == {"one": {"status": 1, "said": "no space left on device"}}


def test_an_image_that_cannot_be_read_is_an_error_and_loads_nothing(run: Run, tmp_path: Path) -> None:
    run.docker("echo 'Error response from daemon: reference does not exist' >&2; exit 1")
    last = run.lines({"one": into(tmp_path / "1")})[-1]
    assert run.status == 1
    assert last == {"error": "Error response from daemon: reference does not exist"}


def test_a_stream_that_breaks_off_is_not_loaded(run: Run, tmp_path: Path) -> None:
    run.docker(f"head -c 20000 {tmp_path}/saved.tar; echo 'no space left on device' >&2; exit 1")
    lines = run.lines({"one": ["sh", "-c", f"cat > {tmp_path}/1; sleep 0.5; touch {tmp_path}/loaded"]})
    assert lines[-1] == {"error": "no space left on device"}
    assert not (tmp_path / "loaded").exists()


def test_progress_is_told_while_the_engine_is_silent(run: Run, tmp_path: Path) -> None:
    run.docker(f"sleep 2.5; cat {tmp_path}/saved.tar")
    assert run.lines({"one": into(tmp_path / "1")})[0] == {"read": 0, "sent": 0}
