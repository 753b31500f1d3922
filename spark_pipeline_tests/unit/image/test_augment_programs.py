"""The programs that run in a build, run here on a Python of their own with real wheels."""

from __future__ import annotations

import io
import json
import os
import runpy
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_pipeline.image.augment import context as context_module
from spark_pipeline.image.augment.context import context
from spark_pipeline_tests.unit.image.augment_samples import keep, layered, make_pip, make_wheel, side

pytestmark = pytest.mark.slow  # real virtual environments, real pip

INSIDE = Path(context_module.__file__).parent / "inside"
MARKER = "spark-pipeline-augment "


class Image:
    """A virtual environment without pip that stands for an image, and what builds on it are given."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache, self.made = folder / "venv", folder / "cache", folder / "made"
        venv.create(self.root, with_pip=False, symlinks=True)
        self.python = self.root / "bin" / "python"
        self.packages = next(self.root.glob("lib/python*/site-packages"))
        self.made.mkdir()
        self.installer = keep(self.cache, make_pip(self.made))
        self._builds = 0

    def has(self, name: str, version: str, files: Mapping[str, str] | None = None) -> None:
        """Put a distribution in, as its own installer would have."""
        path = make_wheel(self.made, name, version, files=files)
        pip = self.made / self.installer.filename / "pip"
        argv = [self.python, pip, "install", "-q", "--no-index", "--no-deps", path]
        subprocess.run([str(word) for word in argv], check=True, capture_output=True)

    def layer(self, *wheels: Path, path: str | None = None) -> tuple[int, list[dict[str, str]]]:
        """Build on it: status, and what the program said."""
        kept = tuple(keep(self.cache, wheel) for wheel in wheels)
        augmentation = layered(side(python=str(self.python)), kept, self.installer)
        self._builds += 1
        place = self.made / f"build-{self._builds}"
        with tarfile.open(fileobj=io.BytesIO(context(augmentation, self.cache))) as tar:
            tar.extractall(place, filter="data")
        environment = {
            **os.environ,
            "PATH": path or f"{self.root / 'bin'}:/usr/bin:/bin",
            "PIP_CONSTRAINT": "/no/such/file",  # as NVIDIA's images have one
            "PIP_REQUIRE_VIRTUALENV": "0",
        }
        argv = [str(self.python), "-B", str(place / "augment" / "install_ray.py")]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith(MARKER)]
        assert lines, done.stdout + done.stderr
        assert (place / "augment").exists() is (done.returncode != 0)  # a finished build leaves nothing in the image
        return done.returncode, [json.loads(line.removeprefix(MARKER)) for line in lines]


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


@pytest.fixture
def ray(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "wheels", "ray", "2.53.0", program="ray")


def test_wheels_are_installed_without_pip_in_the_image_and_whatever_its_settings_say(image: Image, ray: Path) -> None:
    image.has("click", "8.0")
    status, said = image.layer(ray)
    assert status == 0
    assert said[0]["say"].startswith("the base has 1 distributions and ")
    assert said[-1]["say"] == "1 distributions were added, none of the others was changed, moved or removed"
    shown = subprocess.run([str(image.root / "bin" / "ray")], capture_output=True, text=True, check=True)
    assert shown.stdout == "2.53.0\n"


def test_a_wheel_that_replaces_a_package_ends_the_build(image: Image, ray: Path, tmp_path: Path) -> None:
    image.has("click", "8.0")
    status, said = image.layer(ray, make_wheel(tmp_path / "wheels", "click", "9.0"))
    assert status == 1
    assert said[-1]["error"].startswith(
        f"it would change what the base has: click 8.0 in {image.packages} became 9.0; the file {image.packages}/click"
    )


def test_a_wheel_that_writes_over_a_file_of_another_package_ends_the_build(
    image: Image, ray: Path, tmp_path: Path
) -> None:
    image.has("click", "8.0", {"click/core.py": "old = 1\n"})
    intruder = make_wheel(tmp_path / "wheels", "intruder", "1.0", files={"click/core.py": "new = 1\n"})
    status, said = image.layer(ray, intruder)
    assert status == 1
    assert said[-1]["error"] == (
        f"it would change what the base has: the file {image.packages}/click/core.py was changed"
    )


def test_a_wheel_that_does_not_fit_this_python_ends_the_build_with_pips_words(image: Image, ray: Path) -> None:
    other = ray.with_name("ray-2.53.0-cp27-cp27m-win32.whl")
    ray.rename(other)
    status, said = image.layer(other)
    assert status == 1
    assert "is not a supported wheel on this platform" in said[-1]["error"]


def test_a_wheel_without_the_program_ends_the_build(image: Image, tmp_path: Path) -> None:
    status, said = image.layer(make_wheel(tmp_path / "wheels", "ray", "2.53.0"))
    assert status == 1
    assert f"ray was installed as {image.root}/bin/ray, which is not on the image's PATH" in said[-1]["error"]


def test_where_only_vllm_is_on_the_path_ray_is_put_beside_it(image: Image, ray: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "vllm").write_text("#!/bin/sh\n")
    (programs / "vllm").chmod(0o755)
    status, _ = image.layer(ray, path=str(programs))
    assert status == 0
    assert (programs / "ray").resolve() == image.root / "bin" / "ray"


# --- the comparison by itself


@pytest.fixture(scope="module")
def snapshot() -> dict[str, Any]:
    return runpy.run_path(str(INSIDE / "snapshot.py"))


OLD = {"distributions": {"click in /a": ["8.0", "r1"]}, "files": {"/a/click.py": [1, 1]}}


@pytest.mark.parametrize(
    ("distributions", "files", "words"),
    [
        ({}, {"/a/click.py": [1, 1]}, ["click 8.0 in /a was removed"]),
        ({"click in /b": ["8.0", "r1"]}, {"/a/click.py": [1, 1]}, ["click 8.0 in /a was moved to /b"]),
        (
            {"click in /a": ["8.0", "r2"]},
            {"/a/click.py": [1, 1]},
            ["click 8.0 in /a was installed anew with other files"],
        ),
        (
            {"click in /a": ["8.0", "r1"], "click in /b": ["9.0", "r2"]},
            {"/a/click.py": [1, 1]},
            ["click 8.0 in /a is now hidden by another one in /b"],
        ),
        ({"click in /a": ["8.0", "r1"]}, {}, ["the file /a/click.py was removed"]),
        ({"click in /a": ["8.0", "r1"], "ray in /a": ["2", "r"]}, {"/a/click.py": [1, 1], "/a/ray.py": [1, 1]}, []),
    ],
)
def test_what_was_there_before_is_told_by_what_became_of_it(
    snapshot: dict[str, Any], distributions: dict[str, list[str]], files: dict[str, list[int]], words: list[str]
) -> None:
    assert snapshot["differences"](OLD, {"distributions": distributions, "files": files}) == words


# --- grafts

REGISTRY = """_TEXT = {"A": ("a", "A")}
_TEXT_GENERATION_MODELS: dict = {
    # a comment
    "Old": ("old", "Old"),
}
_MULTIMODAL_MODELS = {"B": ("b", "B"), **{k: v for k, v in _TEXT.items()}}
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_MULTIMODAL_MODELS}
"""


class Vllm:
    """Two source trees of vLLM, and the graft between them."""

    def __init__(self, folder: Path) -> None:
        self.base, self.donor, self.place = folder / "base/vllm", folder / "donor/vllm", folder / "augment"
        for root in (self.base, self.donor):
            self.write(root, "__init__.py", "")
            self.write(root, "model_executor/models/interfaces.py", "class Both: ...\n")
            self.write(root, "model_executor/models/registry.py", REGISTRY)
        donor = REGISTRY.replace('"B":', '"New": ("new", "New"), "B":')
        self.write(self.donor, "model_executor/models/registry.py", donor)
        self.write(
            self.donor,
            "model_executor/models/new.py",
            "from vllm.configs.new import Config\nfrom .interfaces import Both, Newer\n"
            "from . import helper\nimport json\nclass New(Both): ...\n",
        )
        self.write(self.donor, "model_executor/models/helper.py", "from .deeper.most import x\n")
        self.write(self.donor, "model_executor/models/deeper/__init__.py", "")
        self.write(self.donor, "model_executor/models/deeper/most.py", "x = 1\n")
        self.write(self.donor, "model_executor/models/unrelated.py", "")
        self.write(self.donor, "configs/new.py", "class Config: ...\n")
        self.place.mkdir()
        for name in ("graft.py", "report.py", "snapshot.py"):
            (self.place / name).write_text((INSIDE / name).read_text())

    def write(self, root: Path, path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    def graft(self, entries: Mapping[str, str]) -> tuple[int, dict[str, str]]:
        """All three steps: status, and the last that was said."""
        order = {"entries": entries, "base_directory": str(self.base), "donor_directory": str(self.donor)}
        (self.place / "order.json").write_text(json.dumps(order))
        last: dict[str, str] = {}
        for step in ("list", "collect", "apply"):
            argv = [sys.executable, "-B", str(self.place / "graft.py"), step]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.stderr == ""
            for line in done.stdout.splitlines():
                last = json.loads(line.removeprefix(MARKER)) if line.startswith(MARKER) else last
            if done.returncode != 0:
                return done.returncode, last
        return 0, last

    def has(self) -> list[str]:
        models = self.base / "model_executor/models"
        return sorted(path.relative_to(models).as_posix() for path in models.rglob("*.py"))


@pytest.fixture
def vllm(tmp_path: Path) -> Vllm:
    return Vllm(tmp_path)


def test_a_graft_brings_the_modules_that_are_needed_and_missing_and_no_others(vllm: Vllm) -> None:
    status, last = vllm.graft({"New": "new:New"})
    assert (status, last["say"]) == (0, "5 files were put in, 1 architectures registered")
    assert vllm.has() == ["deeper/__init__.py", "deeper/most.py", "helper.py", "interfaces.py", "new.py", "registry.py"]
    assert (vllm.base / "configs/new.py").is_file()
    assert (vllm.base / "model_executor/models/interfaces.py").read_text() == "class Both: ...\n"
    assert not vllm.place.exists()


def test_a_grafted_architecture_stands_in_the_table_that_the_donor_has_it_in(vllm: Vllm) -> None:
    vllm.graft({"New": "new:New"})
    table = runpy.run_path(str(vllm.base / "model_executor/models/registry.py"))
    assert table["_MULTIMODAL_MODELS"]["New"] == ("new", "New")
    assert table["_VLLM_MODELS"].keys() == {"New", "A", "B", "Old"}


def test_without_that_table_it_stands_in_one_that_every_vllm_has(vllm: Vllm) -> None:
    text = REGISTRY.replace("_MULTIMODAL_MODELS", "_OTHER")
    vllm.write(vllm.base, "model_executor/models/registry.py", text)
    vllm.graft({"New": "new:New"})
    table = runpy.run_path(str(vllm.base / "model_executor/models/registry.py"))
    assert table["_TEXT_GENERATION_MODELS"]["New"] == ("new", "New")


def test_a_module_that_the_donor_does_not_have_ends_the_build(vllm: Vllm) -> None:
    status, last = vllm.graft({"Gone": "gone:Gone"})
    assert status == 1
    assert last["error"].startswith("the donor's registry names vllm.model_executor.models.gone, and ")
