"""The real vLLM over both nodes, in both multi-node modes: from the report to numbers.

Both architectures: Qwen3.5 in the lab's own image, Qwen3 in one without Ray that serves by itself (test_demo.py, too).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from spark_pipeline.benchmark import stage as benchmark
from spark_pipeline.cluster import containers
from spark_pipeline.compatibility import stage as compatibility
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.image import stage as image
from spark_pipeline.image.choice import read_choice
from spark_pipeline.image.record import read_record as read_image
from spark_pipeline.image.strategy import Way
from spark_pipeline.lab.content import prepare
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.replay_images import replay_image
from spark_pipeline.serving import api
from spark_pipeline.serving import stage as serving
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import stage as weights

pytestmark = pytest.mark.lab

DATA = Path(__file__).parents[2] / "data"


def say(text: str) -> None:
    print(text, file=sys.stderr)


def declare(root: Path, original: str, name: str, *, backend: str, port: int, image: str = "") -> Project:
    """A copy of a shipped deployment under another name and port, so that one that runs in the lab is left alone."""
    for folder in ("fleets", "profiles"):
        shutil.copytree(DATA / folder, root / "data" / folder)
    text = (DATA / "deployments" / f"{original}.yaml").read_text(encoding="utf-8")
    declared = yaml.safe_load(text) | {"name": name, "backend": backend}
    declared["serve"]["port"] = port
    if image:
        declared["image"] = {"candidates": [image], "augment": "auto"}
    file = root / "data" / "deployments" / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(declared), encoding="utf-8")
    return Project.load(root)


@pytest.mark.parametrize(("backend", "port"), [("ray", 8022), ("mp", 8023)])
def test_goes_the_whole_way_and_a_repeat_does_nothing(lab: Lab, tmp_path: Path, backend: str, port: int):
    prepare(lab, say)
    name = f"whole_{backend}"
    project = declare(tmp_path, "tiny_qwen35", name, backend=backend, port=port)
    enroll(project.fleet("lab"), project.known_hosts, say)
    with open_session(project, name, progress=say, run_id="test") as session:
        try:
            go_the_whole_way(session)
        finally:
            serving.stop(session)
        assert containers.observe(session)[0].containers == ()


@pytest.mark.parametrize(("backend", "way", "port"), [("mp", Way.MP, 8024), ("ray", Way.RAY_LAYERED, 8025)])
def test_an_image_without_ray_whose_entrypoint_serves_by_itself_is_served_all_the_same(
    lab: Lab, tmp_path: Path, backend: str, way: Way, port: int
):
    prepare(lab, say)
    wrapper = replay_image(lab, say, "vllm-wrapper").reference
    name = f"wrapper_{backend}"
    project = declare(tmp_path, "tiny", name, backend=backend, port=port, image=wrapper)
    enroll(project.fleet("lab"), project.known_hosts, say)
    with open_session(project, name, progress=say, run_id="test") as session:
        try:
            go_the_whole_way(session)
        finally:
            serving.stop(session)
        choice, record = read_choice(session), read_image(session)
        assert choice.way is way
        assert (record.fingerprint == choice.fingerprint) == (way is Way.MP)
        assert (record.engine.ray is None) == (way is Way.MP)
        if choice.augmentation is not None:
            for host in session.hosts:
                held = Docker(host).image(choice.augmentation.tag)
                assert held is not None
                assert held.labels["spark_pipeline.augment.base"] == choice.fingerprint
                assert "ray==2.53.0" in held.labels["spark_pipeline.augment.added"]
                assert "Ray 2.53.0" in held.labels["spark_pipeline.augment.reason"]
                host.run(["docker", "image", "rm", choice.augmentation.tag, record.reference], timeout=60)


def go_the_whole_way(session: Session) -> None:
    compatibility.ensure(session)
    weights.ensure(session)
    image.ensure(session)
    first = serving.ensure(session)
    generation = first.record.generation
    assert first.changed
    assert first.completion.tokens == 8
    assert api.model_ids(session.head, generation.port) == (generation.served_name,)
    if generation.backend == "ray":
        head = Docker(session.head)
        shown = head.exec(generation.head.container, ("ray", "status"), timeout=60).stdout
        assert shown.count(" node_") == 2, shown
        assert "2.0/2.0 GPU" in shown, shown
    measured = benchmark.ensure(session)
    assert measured.changed
    assert [point.completed for point in measured.points] == [8, 32]
    assert all(point.failed == 0 and point.output_tokens_per_second > 0 for point in measured.points)
    assert {point.commit for point in measured.points} == {generation.commit}
    assert {point.image_fingerprint for point in measured.points} == {generation.image_fingerprint}

    assert not weights.ensure(session).changed
    assert not image.ensure(session).changed
    again = serving.ensure(session)
    assert not again.changed
    assert again.record.container_ids == first.record.container_ids
    assert not benchmark.ensure(session).changed
