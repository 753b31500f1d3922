"""Stand-in images in the lab's registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_pipeline.errors import LabError
from spark_pipeline.lab import registry
from spark_pipeline.lab.images import standin_image
from spark_pipeline.lab.lab import Lab

pytestmark = pytest.mark.lab
REPOSITORY = "test-registry/engine"


@pytest.fixture
def images(lab: Lab) -> Iterator[tuple[str, str]]:
    yield tuple(standin_image(lab, print, tag).reference for tag in ("registry-1", "registry-2"))  # pyright: ignore
    for tag in registry.tags(lab, REPOSITORY):
        try:
            registry.delete(lab, REPOSITORY, tag)
        except LabError:  # an earlier tag of the same digest took it along
            continue
    lab.run_in_node("head", ["docker", "image", "rm", "vllm-standin:registry-1", "vllm-standin:registry-2"])


def test_a_tag_follows_what_is_pushed_and_what_it_is_moved_to(lab: Lab, images: tuple[str, str]) -> None:
    first = registry.push(lab, images[0], REPOSITORY, "latest")
    assert registry.retag(lab, REPOSITORY, "latest", "stable") == first

    second = registry.push(lab, images[1], REPOSITORY, "latest")

    assert second != first
    assert registry.digest(lab, REPOSITORY, "latest") == second
    assert registry.digest(lab, REPOSITORY, "stable") == first
    assert registry.tags(lab, REPOSITORY) == ("latest", "stable")


def test_the_head_can_pull_what_was_pushed(lab: Lab, images: tuple[str, str]) -> None:
    pushed = registry.push(lab, images[0], REPOSITORY, "latest")
    reference = registry.name_in_registry(lab, REPOSITORY, "latest")

    pulled = lab.run_in_node("head", ["docker", "pull", reference])

    assert pushed in pulled.stdout
    assert lab.run_in_node("head", ["docker", "image", "rm", reference]).returncode == 0


def test_what_is_not_there_is_said(lab: Lab) -> None:
    with pytest.raises(LabError, match="refused HEAD test-registry/none"):
        registry.digest(lab, "test-registry/none", "latest")
    with pytest.raises(LabError, match="docker tag failed"):
        registry.push(lab, "no-such-image:1", REPOSITORY, "latest")
    assert registry.tags(lab, "test-registry/none") == ()
