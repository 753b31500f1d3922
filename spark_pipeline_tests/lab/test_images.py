"""Images built on the head of the lab."""

from __future__ import annotations

import pytest

from spark_pipeline.errors import LabError
from spark_pipeline.lab.images import engine_image, standin_image
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.streams import pipe_into_node

pytestmark = pytest.mark.lab
TAGS = ("test-images-1", "test-images-2")


@pytest.fixture
def removed_after(lab: Lab):
    yield
    lab.run_in_node("head", ["docker", "image", "rm", *(f"vllm-standin:{tag}" for tag in TAGS)])


def run(lab: Lab, image: str, *words: str) -> str:
    start = ["docker", "run", "--rm", "--network", "none", "-w", "/", "--entrypoint", words[0], image, *words[1:]]
    done = lab.run_in_node("head", start, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


VERSIONS = "import importlib.metadata as m; print(*(m.version(n) for n in ('vllm', 'ray', 'torch', 'transformers')))"


@pytest.mark.usefixtures("removed_after")
def test_a_stand_in_is_built_once_and_tags_differ(lab: Lab) -> None:
    first = standin_image(lab, print, TAGS[0])
    other = standin_image(lab, print, TAGS[1], ray=False)

    lines: list[str] = []
    assert standin_image(lab, lines.append, TAGS[0]) == first
    assert lines == []
    ids = lab.run_in_node("head", ["docker", "image", "inspect", "-f", "{{.Id}}", first.reference, other.reference])
    assert len(set(ids.stdout.split())) == 2
    assert run(lab, first.reference, "python3", "-c", VERSIONS) == (
        "0.32.0+standin 2.53.0+standin 2.13.0+standin 5.19.0+standin"
    )
    assert run(lab, other.reference, "sh", "-c", "command -v ray || echo none") == "none"


def test_the_engine_image_has_vllm_and_ray_of_the_pinned_versions(lab: Lab) -> None:
    image = engine_image(lab, print)

    assert run(lab, image.reference, "python3", "-c", VERSIONS) == "0.32.0+cpu 2.53.0 2.13.0+cpu 5.19.0"
    lines: list[str] = []
    assert engine_image(lab, lines.append) == image
    assert lines == []


def test_a_command_that_is_fed_ends_with_its_time(lab: Lab) -> None:
    def feed(source: list[str], argv: list[str]) -> str:
        return pipe_into_node(lab.node("head"), source, argv, say=print, step="feeding", timeout_s=1.5)

    assert feed(["echo", "bytes"], ["cat"]) == "bytes\n"
    with pytest.raises(LabError, match="feeding failed"):
        feed(["echo"], ["sh", "-c", "echo why; exit 3"])
    with pytest.raises(LabError, match="feeding failed"):
        feed(["true"], ["sleep", "54321"])
    assert lab.run_in_node("head", ["pgrep", "-f", "sleep 54321"]).stdout == ""
