"""Which wheels are missing: what an image has stays, and a conflict names both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from spark_pipeline.errors import ImageError
from spark_pipeline.image.augment import package_index, resolve
from spark_pipeline.image.augment.augmentation import Wheel
from spark_pipeline.image.augment.package_index import Found, NothingFitsError, Target, look_up
from spark_pipeline.image.augment.resolve import Held, resolve_ray, settle
from spark_pipeline_tests.unit.image.augment_samples import answer, make_wheel

TARGET = Target("3.12.3", "arm64")
INDEX: dict[str, dict[str, tuple[str, ...]]] = {
    "ray": {"2.53.0": ("click>=7.0", "jsonschema", "msgpack<2.0.0,>=1.0.0", "cupy; extra == 'cgraph'")},
    "click": {"8.5.1": ("colorama; platform_system == 'Windows'",)},
    "jsonschema": {"4.26.0": ("attrs>=25", "rpds-py"), "4.17.0": ("attrs>=17",)},
    "rpds-py": {"1.0": ()},
    "msgpack": {"2.1.0": (), "1.2.4": ()},
    "attrs": {"26.1": ()},
    "cupy": {"14.2": ("numpy; platform_machine == 'aarch64'", "oldlib; python_version < '3.12'")},
    "numpy": {"2.4": ()},
}


class Index:
    """A package index; notes what it was asked."""

    def __init__(self, content: Mapping[str, Mapping[str, tuple[str, ...]]] = INDEX) -> None:
        self.content = content
        self.asked: list[list[str]] = []

    def __call__(self, requirements: Sequence[str]) -> tuple[Found, ...]:
        self.asked.append(list(requirements))
        return tuple(self._newest(Requirement(text)) for text in requirements)

    def _newest(self, wanted: Requirement) -> Found:
        versions = sorted(self.content.get(wanted.name, {}), key=Version, reverse=True)
        version = next((item for item in versions if wanted.specifier.contains(item)), None)
        if version is None:
            raise NothingFitsError(f"ERROR: No matching distribution found for {wanted}")
        wheel = Wheel(name=wanted.name, version=version, filename=f"{wanted.name}.whl", sha256="0" * 64)
        return Found(wheel, tuple(Requirement(text) for text in self.content[wanted.name][version]))


def missing(packages: Mapping[str, str], *, root: str = "ray==2.53.0", index: Index | None = None) -> list[str]:
    held = Held.of(answer(packages=packages))
    return [str(item.wheel) for item in settle(Requirement(root), held, TARGET, index or Index())]


def test_what_the_image_has_is_kept_and_only_the_rest_is_added() -> None:
    index = Index()
    assert missing({"click": "8.0", "jsonschema": "4.20"}, index=index) == ["ray==2.53.0", "msgpack==1.2.4"]
    assert index.asked == [["ray==2.53.0"], ["msgpack<2.0.0,>=1.0.0"]]


def test_requirements_of_what_is_added_are_followed() -> None:
    found = missing({"click": "8.0"})
    assert found == ["ray==2.53.0", "attrs==26.1", "jsonschema==4.26.0", "msgpack==1.2.4", "rpds-py==1.0"]


def test_versions_that_no_index_knows_satisfy_what_they_are_versions_of() -> None:
    packages = {"click": "8.1+cu130", "Json_Schema": "1", "jsonschema": "4.20", "msgpack": "some-git-build"}
    assert missing(packages) == ["ray==2.53.0"]


def test_markers_are_those_of_the_image_and_extras_bring_their_own() -> None:
    packages = {"click": "8", "jsonschema": "4", "msgpack": "1.1"}
    assert missing(packages, root="ray[cgraph]==2.53.0") == ["ray==2.53.0", "cupy==14.2", "numpy==2.4"]


def test_a_conflict_with_ray_itself_names_both_requirements() -> None:
    held = Held.of(answer(packages={"msgpack": "0.6"}, requirements=("msgpack<1", "torch"), vllm="0.14.1"))
    with pytest.raises(ImageError) as caught:
        settle(Requirement("ray==2.53.0"), held, TARGET, Index())
    assert caught.value.what == "ray==2.53.0 cannot be layered on this image without changing what it has"
    assert caught.value.observed == (
        "ray 2.53.0 requires msgpack<2.0.0,>=1.0.0; the image has msgpack 0.6; vLLM 0.14.1 requires msgpack<1"
    )
    assert "backend: mp" in caught.value.remedy


def test_a_dependency_that_does_not_go_with_the_image_makes_way_for_an_older_one() -> None:
    assert missing({"attrs": "22.0", "click": "8"}) == ["ray==2.53.0", "jsonschema==4.17.0", "msgpack==1.2.4"]


def test_where_no_older_one_goes_either_the_conflict_is_told() -> None:
    with pytest.raises(ImageError) as caught:
        missing({"attrs": "16.0", "click": "8"})
    assert "jsonschema 4.17.0 requires attrs>=17; the image has attrs 16.0" in caught.value.observed
    assert "No matching distribution found for jsonschema" in caught.value.observed


def test_a_python_without_ray_is_refused_before_any_index_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no Ray can be layered") as caught:
        resolve_ray(answer(python="3.8.10"), "arm64", tmp_path, lambda line: None)
    assert "no Ray has a wheel for the image's Python 3.8.10" in caught.value.observed


def test_what_was_resolved_once_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index({**INDEX, "pip": {"26.3": ()}})
    monkeypatch.setattr(resolve, "look_up", lambda names, target: index(names))
    first = resolve_ray(answer(packages={"click": "8"}), "arm64", tmp_path, lambda line: None)
    asked = len(index.asked)
    assert resolve_ray(answer(packages={"click": "8"}), "arm64", tmp_path, lambda line: None) == first
    assert len(index.asked) == asked
    resolve_ray(answer(packages={"click": "9"}), "arm64", tmp_path, lambda line: None)
    assert len(index.asked) > asked


# --- pip itself, with a folder as its index


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    wheels = tmp_path / "index"
    make_wheel(wheels, "ray", "2.53.0", requires=("click>=7", "other; sys_platform == 'win32'"))
    make_wheel(wheels, "ray", "2.52.0")
    make_wheel(wheels, "click", "8.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def test_pip_tells_version_hash_size_and_requirements(folder: Path) -> None:
    (found,) = look_up(["ray<2.53.1"], TARGET)
    assert str(found.wheel) == "ray==2.53.0"
    assert found.wheel.filename == "ray-2.53.0-py3-none-any.whl"
    assert found.wheel.size_bytes == (folder / found.wheel.filename).stat().st_size
    assert len(found.wheel.sha256) == 64
    assert [item.name for item in found.requires] == ["click", "other"]


def test_a_constraints_file_of_this_machine_does_not_count(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints.txt").write_text("ray<2.53\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    assert look_up(["ray"], TARGET)[0].wheel.version == "2.53.0"


def test_a_release_that_the_index_lacks_is_told_from_an_index_that_does_not_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NothingFitsError, match="No matching distribution found for ray==9"):
        look_up(["ray==9"], TARGET)
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ImageError, match="the package index gave no answer") as caught:
        look_up(["ray==9"], TARGET)
    assert "PIP_INDEX_URL" in caught.value.remedy


def test_an_index_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImageError, match="gave no answer about ray") as caught:
        package_index.run_pip(["download", "ray"], what="ray", timeout=0.01)
    assert caught.value.observed == "no answer within 0 s"
