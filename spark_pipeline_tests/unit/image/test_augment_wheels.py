"""Wheels are fetched once, checked, and kept by their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pipeline.errors import ImageError
from spark_pipeline.image.augment import wheels
from spark_pipeline.image.augment.augmentation import Wheel
from spark_pipeline.image.augment.package_index import Target, look_up
from spark_pipeline.image.augment.wheels import fetch, wheel_file
from spark_pipeline_tests.unit.image.augment_samples import make_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    make_wheel(folder, "ray", "2.53.0")
    make_wheel(folder, "click", "8.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def resolved(*names: str) -> tuple[Wheel, ...]:
    return tuple(found.wheel for found in look_up(names, Target("3.12.3", "arm64")))


def test_every_wheel_comes_under_its_hash_and_a_second_time_pip_is_not_asked(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, wanted = tmp_path / "cache", resolved("ray", "click")
    fetch(wanted, cache, lambda line: None)
    for wheel in wanted:
        assert wheel_file(cache, wheel).read_bytes() == (index / wheel.filename).read_bytes()
    assert sorted(path.name for path in cache.iterdir()) == ["files"]
    monkeypatch.setattr(wheels, "run_pip", lambda *words, **more: pytest.fail("pip was asked"))
    assert fetch(wanted, cache, lambda line: None) == cache


def test_other_bytes_than_those_that_were_resolved_are_refused(index: Path, tmp_path: Path) -> None:
    cache, wanted = tmp_path / "cache", resolved("ray")
    make_wheel(index, "ray", "2.53.0", files={"ray/__init__.py": "evil = True\n"})
    with pytest.raises(ImageError) as caught:
        fetch(wanted, cache, lambda line: None)
    assert caught.value.what == "the package index no longer has the bytes of ray==2.53.0 that were resolved"
    assert not wheel_file(cache, wanted[0]).exists()


def test_a_wheel_for_another_machine_and_python_is_asked_for_by_its_own_tags() -> None:
    names = ("ray-2.53.0-cp312-cp312-manylinux2014_aarch64.whl", "x-1-cp310-abi3-manylinux_2_17_aarch64.whl")
    words = wheels._platform_options([Wheel(name="x", version="1", filename=name, sha256="") for name in names])
    assert words == [
        *("--only-binary", ":all:", "--platform", "manylinux2014_aarch64", "--platform", "manylinux_2_17_aarch64"),
        *("--abi", "abi3", "--abi", "cp312", "--implementation", "cp", "--python-version", "3.12"),
    ]
