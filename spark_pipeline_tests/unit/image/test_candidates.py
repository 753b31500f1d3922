"""Where the candidates are, and what rules one out before it is pulled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.errors import ImageError, ImageNotFoundError, RegistryError
from spark_pipeline.fleet.session import Session
from spark_pipeline.image import candidates
from spark_pipeline.image.candidates import (
    Candidate,
    Machine,
    Pin,
    ask_registry,
    look,
    machines,
    pull,
    wanted_candidates,
)
from spark_pipeline.image.registry import RemoteImage
from spark_pipeline.image.registry_client import NotAllowedError
from spark_pipeline.spec.deployment import Graft
from spark_pipeline_tests.doubles import ScriptedHost
from spark_pipeline_tests.projects import scripted_session, tiny_project
from spark_pipeline_tests.unit.image.samples import DIGEST, image_json

LAB = (Machine("head", "x86_64"), Machine("peer", "x86_64"))
SPARKS = (Machine("head", "aarch64"), Machine("peer", "aarch64"))
REMOTE = RemoteImage(DIGEST, ("linux/amd64",), 400)


def session(tmp_path: Path, head: ScriptedHost, *declared: str) -> Session:
    peer = ScriptedHost("peer").on("uname", "-m", stdout="x86_64\n")
    return scripted_session(tiny_project(tmp_path, *declared), head, peer)


def answers(monkeypatch: pytest.MonkeyPatch, answer: RemoteImage | RegistryError | ImageNotFoundError) -> list[str]:
    asked: list[str] = []

    def remote_image(reference: str, architecture: str) -> RemoteImage:
        asked.append(f"{reference} for {architecture}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(candidates, "remote_image", remote_image)
    return asked


def inspect(name: str) -> tuple[str, ...]:
    return ("docker", "image", "inspect", "--format", "{{json .}}", name)


def test_what_the_head_holds_is_known_without_any_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, REMOTE)
    head = ScriptedHost("head").on(
        *inspect("team/engine:1"), stdout=image_json(repo_digests=(f"team/engine@{DIGEST}",))
    )
    head.on(*inspect("other:1"), status=1, stderr="Error: No such image: other:1")
    held, absent = look(
        session(tmp_path, head, "team/engine:1", "other:1"), (("team/engine:1", None), ("other:1", None)), LAB
    )
    assert held.on_head is not None
    assert (held.digest, held.against) == (DIGEST, "")
    assert (absent.on_head, absent.digest) == (None, None)
    assert asked == []


def test_an_image_for_other_processors_is_ruled_out_in_clear_words(tmp_path: Path) -> None:
    head = ScriptedHost("head").on(*inspect("engine:1"), stdout=image_json())
    (found,) = look(session(tmp_path, head, "engine:1"), (("engine:1", None),), SPARKS)
    assert found.against == "amd64 image on arm64 node head (aarch64)"


def test_one_node_of_another_kind_is_enough_to_rule_it_out(tmp_path: Path) -> None:
    head = ScriptedHost("head").on(*inspect("engine:1"), stdout=image_json())
    (found,) = look(session(tmp_path, head, "engine:1"), (("engine:1", None),), (LAB[0], SPARKS[1]))
    assert found.against == "amd64 image on arm64 node peer (aarch64)"


def test_the_processors_are_asked_of_every_node(tmp_path: Path) -> None:
    head = ScriptedHost("head").on("uname", "-m", stdout="aarch64\n")
    found = machines(session(tmp_path, head, "engine:1"))
    assert [(one.node, one.architecture) for one in found] == [("head", "arm64"), ("peer", "amd64")]


def test_an_image_only_for_other_processors_is_not_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, replace(REMOTE, size_bytes=None))
    found = ask_registry(Candidate("team/engine:1", None, None), SPARKS)
    assert found.against == ("not on the head; its registry has it for linux/amd64 only, head is linux/arm64 (aarch64)")
    assert asked == ["team/engine:1 for arm64"]


def test_what_its_registry_has_is_pinned_to_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, REMOTE)
    found = ask_registry(Candidate("team/engine:1", None, None), LAB)
    assert (found.digest, found.pinned, found.against) == (DIGEST, f"team/engine@{DIGEST}", "")


@pytest.mark.parametrize(
    "refusal",
    [
        ImageNotFoundError("registry docker.io has no team/engine:1", observed="404 Not Found", remedy="docker login"),
        NotAllowedError("registry docker.io does not show it", observed="401 Unauthorized", remedy="docker login"),
    ],
)
def test_a_no_of_its_registry_rules_it_out(
    monkeypatch: pytest.MonkeyPatch, refusal: ImageNotFoundError | RegistryError
) -> None:
    answers(monkeypatch, refusal)
    found = ask_registry(Candidate("team/engine:1", None, None), LAB)
    assert found.against == f"not on the head; {refusal.what} ({refusal.observed}): docker login"


def test_no_answer_of_its_registry_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = RegistryError("registry docker.io does not show it", observed="429 Too Many Requests", remedy="wait")
    answers(monkeypatch, fault)
    with pytest.raises(RegistryError, match="candidate team/engine:1 ") as caught:
        ask_registry(Candidate("team/engine:1", None, None), LAB)
    assert caught.value.observed == "429 Too Many Requests"
    assert "take it out of image.candidates" in caught.value.remedy


def test_a_candidate_declared_by_another_digest_cannot_be_the_one_asked_for(tmp_path: Path) -> None:
    work = session(tmp_path, ScriptedHost("head"), f"team/engine@sha256:{'e' * 64}")
    with pytest.raises(ImageNotFoundError, match=f"no candidate can be at {DIGEST}"):
        wanted_candidates(work, Pin(DIGEST))


def test_a_digest_is_that_of_the_candidate_it_was_seen_behind_and_of_no_other(tmp_path: Path) -> None:
    work = session(tmp_path, ScriptedHost("head"), "team/engine:1", "team/other:1")
    assert wanted_candidates(work, None) == (("team/engine:1", None), ("team/other:1", None))
    assert wanted_candidates(work, Pin(DIGEST, "team/other:1")) == (("team/other:1", DIGEST),)
    assert wanted_candidates(work, Pin(DIGEST)) == (("team/engine:1", DIGEST), ("team/other:1", DIGEST))
    with pytest.raises(ImageNotFoundError, match="no candidate can be at") as caught:
        wanted_candidates(work, Pin(DIGEST, "team/gone:1"))
    assert "asked for: team/gone:1" in caught.value.observed


def test_of_a_graft_the_other_side_is_taken_as_it_is_declared(tmp_path: Path) -> None:
    work = session(tmp_path, ScriptedHost("head"), "team/old:1", "team/new:1")
    graft = Graft(base="team/old:1", donor="team/new:1")
    image = work.deployment.image.model_copy(update={"graft": graft})
    work = replace(work, deployment=work.deployment.model_copy(update={"image": image}))
    assert wanted_candidates(work, Pin(DIGEST, "team/old:1")) == (("team/old:1", DIGEST), ("team/new:1", None))


def room(head: ScriptedHost, free_bytes: int) -> ScriptedHost:
    for name in ("team/engine", "10.77.0.1:5000/engine"):
        head.on(*inspect(f"{name}@{DIGEST}"), status=1, stderr="Error: No such image", times=None)
    head.on("docker", "info", "--format", "{{.DockerRootDir}}", stdout="/var/lib/docker\n")
    return head.on("df", ..., "/var/lib/docker", stdout=f"Avail\n{free_bytes}\n")


def test_a_head_without_room_is_told_before_the_pull(tmp_path: Path) -> None:
    head = room(ScriptedHost("head"), 999)
    with pytest.raises(ImageError, match="no room to pull team/engine@") as caught:
        pull(session(tmp_path, head, "team/engine:1"), Candidate("team/engine:1", DIGEST, None, REMOTE))
    assert caught.value.observed == "some 1.0 kB needed unpacked (400 B to pull), 999 B free at /var/lib/docker"


def pulls(said: str) -> Callable[[ScriptedHost], ScriptedHost]:
    return lambda head: head.on("docker", "pull", ..., status=1, stderr=said)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (
            "Error response from daemon: http: server gave HTTP response to HTTPS client",
            'add "10.77.0.1:5000" to insecure-registries',
        ),
        ("write /var/lib/docker/tmp: no space left on device", "docker image prune there"),
        ("denied: requested access to the resource is denied", "a private image needs docker login there"),
    ],
)
def test_a_pull_that_fails_says_what_to_do(tmp_path: Path, said: str, remedy: str) -> None:
    head = pulls(said)(room(ScriptedHost("head"), 10_000))
    with pytest.raises(ImageError, match="could not be pulled") as caught:
        pull(session(tmp_path, head, "team/engine:1"), Candidate("10.77.0.1:5000/engine:1", DIGEST, None, REMOTE))
    assert caught.value.node == "head"
    assert remedy in caught.value.remedy


def test_a_pull_that_brings_nothing_is_an_error(tmp_path: Path) -> None:
    head = room(ScriptedHost("head"), 10_000).on("docker", "pull", ...)
    with pytest.raises(ImageError, match="was pulled, and is not there"):
        pull(session(tmp_path, head, "team/engine:1"), Candidate("team/engine:1", DIGEST, None, REMOTE))


def test_what_was_pulled_before_is_not_pulled_again_and_no_tag_moves(tmp_path: Path) -> None:
    head = ScriptedHost("head").on(*inspect(f"team/engine@{DIGEST}"), stdout=image_json())
    held = pull(session(tmp_path, head, "team/engine:1"), Candidate("team/engine:1", DIGEST, None, REMOTE))
    assert held.fingerprint
    assert all(argv[:2] == ("docker", "image") for argv in head.commands)
