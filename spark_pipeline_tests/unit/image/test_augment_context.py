"""What `docker build` is given, as text and bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_pipeline.errors import ImageError
from spark_pipeline.fleet.docker_objects import ImageFacts, parse_image
from spark_pipeline.image.augment.augmentation import Augmentation
from spark_pipeline.image.augment.build import build, discard, find
from spark_pipeline.image.augment.context import build_command, context, dockerfile, labels
from spark_pipeline.image.augment.plan import commands, plan_graft
from spark_pipeline_tests.doubles import ScriptedHost
from spark_pipeline_tests.unit.image.augment_samples import answer, keep, layered, make_wheel, names_in, side

IMAGE = (
    '{"Id":"sha256:%s","Architecture":"arm64","Os":"linux","Config":{"Labels":%s},"RootFS":{"Layers":["sha256:01"]}}'
)


def image(labels: str = "{}", number: str = "a1") -> ImageFacts:
    return parse_image("engine:1", IMAGE % (number, labels))


@pytest.fixture
def ray(tmp_path: Path) -> Augmentation:
    wheel = keep(tmp_path, make_wheel(tmp_path / "made", "ray", "2.53.0"))
    return layered(side(python="/opt/venv/bin/python"), (wheel,), wheel)


def test_the_dockerfile_begins_with_a_name_that_cannot_move_and_needs_no_shell(ray: Augmentation) -> None:
    assert dockerfile(ray).splitlines() == [
        "FROM localhost/spark-pipeline/augment-source:abababababababab",
        f"LABEL spark_pipeline.augment.key=building-{ray.key}",
        "COPY augment /spark-pipeline-augment",
        'RUN ["/opt/venv/bin/python", "-B", "/spark-pipeline-augment/install_ray.py"]',
    ]


@pytest.mark.parametrize("user", ["", "0", "root"])
def test_an_image_that_runs_as_root_keeps_its_own_word_for_it(ray: Augmentation, user: str) -> None:
    assert "USER" not in dockerfile(ray.model_copy(update={"base": side(user=user)}))


def test_another_user_is_put_back_at_the_end(ray: Augmentation) -> None:
    lines = dockerfile(ray.model_copy(update={"base": side(user="vllm:vllm")})).splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 0", "USER vllm:vllm"]
    assert lines[-1] == "USER vllm:vllm"


def test_the_tag_changes_with_what_is_in_the_image_and_not_with_words(ray: Augmentation, tmp_path: Path) -> None:
    assert ray.installer is not None
    other = keep(tmp_path, make_wheel(tmp_path / "other", "ray", "2.54.0"))
    assert layered(ray.base, ray.wheels, ray.installer, reason="said otherwise").tag == ray.tag
    assert layered(ray.base, (other,), ray.installer).tag != ray.tag
    assert layered(side(fingerprint="cd" * 32), ray.wheels, ray.installer).tag != ray.tag
    assert ray.tag.startswith("localhost/spark-pipeline/augmented:")
    assert len(ray.key) == 16


def test_labels_say_from_what_with_what_and_why(ray: Augmentation) -> None:
    assert labels(ray) == {
        "spark_pipeline.augment.key": ray.key,
        "spark_pipeline.augment.base": "ab" * 32,
        "spark_pipeline.augment.added": "ray==2.53.0",
        "spark_pipeline.augment.reason": "it has no Ray",
    }
    assert build_command(ray)[:7] == (
        *("env", "BUILDX_BUILDER=default"),
        *("docker", "build", "--network", "none", "--force-rm"),
    )


def test_the_context_is_the_same_every_time_and_holds_all_that_is_needed(ray: Augmentation, tmp_path: Path) -> None:
    content = context(ray, tmp_path)
    assert content == context(ray, tmp_path)
    assert names_in(content)[:5] == [
        "Dockerfile",
        *(f"augment/{name}" for name in ("order.json", "install_ray.py", "report.py", "snapshot.py")),
    ]
    assert names_in(content)[5] == "augment/wheels/ray-2.53.0-py3-none-any.whl"


def test_a_plan_shows_the_dockerfile_and_the_command(ray: Augmentation) -> None:
    shown = commands(ray)
    assert "# it has no Ray\n" in shown
    assert "#   FROM localhost/spark-pipeline/augment-source:abababababababab\n" in shown
    assert "docker tag engine:1 localhost/spark-pipeline/augment-source:abababababababab\n" in shown
    assert "| env BUILDX_BUILDER=default docker build --network none --force-rm --label" in shown


# --- grafts

DONOR = {
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5:Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5MoeMTP": "qwen3_5_mtp:Qwen3_5MoeMTP",
    "Qwen3_5Known": "qwen3_5:Known",
    "Other": "other:Other",
}


def graft(architecture: str) -> Augmentation:
    base = answer(architectures={"Qwen3_5Known": "qwen3:Known"}, vllm="0.14.1")
    giver = answer(architectures=DONOR, vllm="0.17.0")
    return plan_graft(base, giver, architecture, image(), image(number="b2"), "old:1", "new:1", "asked for by name")


def test_a_graft_takes_the_architecture_and_its_sibling_modules_that_the_base_lacks() -> None:
    planned = graft("Qwen3_5MoeForConditionalGeneration")
    assert sorted(planned.entries) == ["Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeMTP"]
    assert planned.added[1] == "Qwen3_5MoeMTP=qwen3_5_mtp:Qwen3_5MoeMTP"
    assert [line.partition(" AS ")[2] for line in dockerfile(planned).splitlines() if line.startswith("FROM")] == [
        "listing",
        "donor",
        "",
    ]
    assert labels(planned)["spark_pipeline.augment.donor"] == image(number="b2").fingerprint


@pytest.mark.parametrize(("architecture", "words"), [("Nobody", "has no Nobody to give"), ("Qwen3_5Known", "already")])
def test_a_graft_that_makes_no_sense_is_refused(architecture: str, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        graft(architecture)


# --- the build, where the node's answers are foreseen


def test_an_image_that_is_there_with_these_labels_is_not_built(ray: Augmentation, tmp_path: Path) -> None:
    there = IMAGE % ("c3", json.dumps(labels(ray) | {"spark_pipeline.augment.reason": "another"}))
    host = ScriptedHost().on("docker", "image", "inspect", ..., ray.tag, stdout=there)
    said: list[str] = []
    assert build(host, image(), ray, tmp_path, said.append).image_id == "sha256:c3"
    assert said == [f"{ray.tag} is on head already: nothing was built"]


def test_an_image_of_that_name_made_by_somebody_else_does_not_count(ray: Augmentation) -> None:
    host = ScriptedHost().on("docker", "image", "inspect", ..., ray.tag, stdout=IMAGE % ("c3", "{}"))
    assert find(host, ray) is None


def test_a_refused_build_says_why_and_takes_everything_back(ray: Augmentation, tmp_path: Path) -> None:
    host, label = ScriptedHost(), f"label=spark_pipeline.augment.key=building-{ray.key}"
    source = "localhost/spark-pipeline/augment-source:abababababababab"
    host.on("docker", "image", "inspect", ..., ray.tag, status=1, stderr="Error: No such image: x")
    host.on("docker", "info", ..., stdout="/var/lib/docker").on("df", ..., stdout="Avail\n99000000000\n")
    host.on("docker", "tag", "sha256:a1", source)
    refusal = '#7 0.4 spark-pipeline-augment {"error": "it would change what the base has: click 8 became 9"}'
    cut = 'spark-pipeline-augment {"error": "it wou'
    host.on("sh", "-c", ..., status=1, stdout=f'Step 1/4\nspark-pipeline-augment {{"say": "hm"}}\n{refusal}\n{cut}\n')
    host.on("docker", "ps", ..., label, stdout="")
    host.on("docker", "image", "ls", ..., label, stdout="sha256:d4\n")
    host.on("docker", "image", "rm", "sha256:d4")
    host.on("docker", "image", "ls", ..., label, stdout="")
    host.on("docker", "image", "inspect", "--format", "{{len .RepoTags}}", source, stdout="2\n")
    host.on("docker", "image", "rm", source)
    said: list[str] = []
    with pytest.raises(ImageError) as caught:
        build(host, image(), ray, tmp_path, said.append)
    host.finish()
    assert caught.value.what == "ray==2.53.0 could not be added to engine:1"
    assert caught.value.observed == "it would change what the base has: click 8 became 9"
    assert "hm" in said


def test_without_room_nothing_is_sent(ray: Augmentation, tmp_path: Path) -> None:
    host = ScriptedHost().on("docker", "image", "inspect", ..., status=1, stderr="No such image")
    host.on("docker", "info", ..., stdout="/var/lib/docker").on("df", ..., stdout="Avail\n1000\n")
    with pytest.raises(ImageError, match="no room to build"):
        build(host, image(), ray, tmp_path, lambda line: None)


def test_an_image_that_a_container_uses_is_not_discarded_in_silence(ray: Augmentation) -> None:
    host = ScriptedHost().on("docker", "image", "rm", ray.tag, status=1, stderr="conflict: container 12 is using it")
    host.on("docker", "image", "inspect", ..., ray.tag, stdout=IMAGE % ("c3", "{}"))
    with pytest.raises(ImageError, match="could not be removed"):
        discard(host, ray.tag)
