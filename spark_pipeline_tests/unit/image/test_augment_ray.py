"""Which Ray an image is given."""

from __future__ import annotations

import pytest

from spark_pipeline.image.augment.ray import PREFERRED, ray_version
from spark_pipeline_tests.unit.image.augment_samples import answer


@pytest.mark.parametrize("python", ["3.10.12", "3.12.3", "3.13.1"])
def test_without_a_requirement_it_is_the_release_that_was_tried(python: str) -> None:
    assert ray_version(answer(python=python)).requirement == f"ray=={PREFERRED}"


def test_vllms_own_requirement_and_its_extra_are_kept() -> None:
    choice = ray_version(answer(requirements=("torch==2.9", "ray[cgraph]>=2.48.0"), vllm="0.14.1"))
    assert choice.requirement == "ray[cgraph]==2.53.0"
    assert choice.reason == "vLLM 0.14.1 requires ray[cgraph]>=2.48.0, and it has a wheel for Python 3.12.3"


@pytest.mark.parametrize(("cuda", "has"), [("13.0", "CUDA 13.0"), (None, "no CUDA")])
def test_the_extra_that_is_cupy_for_cuda_12_is_left_out_where_it_cannot_load(cuda: str | None, has: str) -> None:
    choice = ray_version(answer(requirements=("ray[cgraph]>=2.48.0",), cuda=cuda))
    assert choice.requirement == "ray==2.53.0"
    assert choice.reason.endswith(f"without cgraph, CuPy for CUDA 12: it has {has}")


def test_a_python_that_it_has_no_wheel_for_gets_the_newest_that_has_one() -> None:
    assert ray_version(answer(python="3.14.0")).version == "2.60.0"
    assert ray_version(answer(python="3.9.18")).version == "2.51.2"


def test_a_requirement_that_excludes_it_gets_the_newest_that_is_allowed() -> None:
    assert ray_version(answer(requirements=("ray>=2.54,!=2.60.0",))).version == "2.55.1"


def test_a_release_that_is_pinned_is_taken_although_it_is_not_known_here() -> None:
    assert ray_version(answer(requirements=("ray==2.46.0",))).version == "2.46.0"


def test_a_requirement_of_an_extra_of_vllm_says_nothing_about_vllm() -> None:
    assert ray_version(answer(requirements=('ray==2.40.0; extra == "old"',))).version == PREFERRED


def test_a_python_without_any_wheel_is_refused_with_what_there_is() -> None:
    choice = ray_version(answer(python="3.8.10"))
    assert choice.version is None
    assert choice.reason.startswith("no Ray has a wheel for the image's Python 3.8.10: 2.53.0 for 3.10 to 3.13, ")


def test_a_requirement_that_nothing_satisfies_is_refused_with_its_words() -> None:
    choice = ray_version(answer(requirements=("ray<2.0",)))
    assert choice.version is None
    assert "requires ray<2.0, and none of the known releases (2.53.0, 2.60.0" in choice.reason
