"""The stage on scripted machines: what it asks, what it changes, what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from spark_pipeline.errors import ImageError, ImageNotFoundError, RegistryError, StateError
from spark_pipeline.fleet.session import Session
from spark_pipeline.image import facts, observe, stage
from spark_pipeline.image.plan import own_tag
from spark_pipeline.image.record import read_record
from spark_pipeline.image.registry_client import NotAllowedError
from spark_pipeline.spec import store
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.doubles import ScriptedConnection, ScriptedHost
from spark_pipeline_tests.unit.image.samples import DIGEST, ENGINE, PROBED, image, image_json

OWN = own_tag(image().fingerprint)
DATA = Path(__file__).parents[3] / "data"


@pytest.fixture
def head() -> ScriptedHost:
    return ScriptedHost("head")


@pytest.fixture
def peer() -> ScriptedHost:
    return ScriptedHost("peer")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Digest by reference, as the registries would tell it."""
    digests: dict[str, str] = {}

    def remote_digest(reference: str) -> str:
        if reference not in digests:
            raise ImageNotFoundError(f"no registry has {reference}", observed="404 Not Found")
        return digests[reference]

    monkeypatch.setattr(observe, "remote_digest", remote_digest)
    return digests


def session(tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, *candidates: str) -> Session:
    for kind, name in (("fleets", "lab"), ("deployments", "tiny"), ("profiles", "smoke")):
        declared = yaml.safe_load((DATA / kind / f"{name}.yaml").read_text(encoding="utf-8"))
        if kind == "deployments":
            declared["image"]["candidates"] = list(candidates)
        (tmp_path / "data" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / kind / f"{name}.yaml").write_text(yaml.safe_dump(declared))
    project = Project.load(tmp_path)
    connection = ScriptedConnection([head, peer])
    return Session(project, project.deployment("tiny"), connection, print, "run-1")  # type: ignore[arg-type]


def known_engine(work: Session) -> None:
    store.write(facts._file(work.project, image().fingerprint), PROBED)


def holds(host: ScriptedHost, *names: str, **changes: object) -> None:
    for name in names:
        host.on(*inspect(name), stdout=image_json(**changes), times=None)  # type: ignore[arg-type]


def lacks(host: ScriptedHost, *names: str) -> None:
    for name in names:
        host.on(*inspect(name), status=1, stderr=f"Error: No such image: {name}", times=None)


def inspect(name: str) -> tuple[str, ...]:
    return ("docker", "image", "inspect", "--format", "{{json .}}", name)


def are(hardware: str, *hosts: ScriptedHost) -> None:
    for host in hosts:
        host.on("uname", "-m", stdout=f"{hardware}\n", times=None)


def verbs(host: ScriptedHost) -> set[str]:
    return {" ".join(argv[:2]) for argv in host.commands}


def test_when_every_node_has_it_nothing_is_changed_and_it_says_so(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    known_engine(work)
    are("x86_64", head, peer)
    for host in (head, peer):
        holds(host, "engine:1", OWN)
    result = stage.ensure(work)
    assert not result.changed
    assert not result.plan.changes
    assert result.plan.commands == ()
    assert verbs(head) | verbs(peer) == {"uname -m", "docker image"}
    assert all(node.already_there and node.sent_bytes == 0 for node in result.nodes)


def test_the_record_names_the_image_by_what_is_in_it(tmp_path: Path, head: ScriptedHost, peer: ScriptedHost) -> None:
    work = session(tmp_path, head, peer, "10.77.0.1:5000/engine:1")
    known_engine(work)
    are("x86_64", head, peer)
    for host in (head, peer):
        holds(host, "10.77.0.1:5000/engine:1", OWN, repo_digests=(f"10.77.0.1:5000/engine@{DIGEST}",))
    stage.ensure(work)
    record = read_record(work)
    assert record.reference == OWN == f"localhost/spark-pipeline/engine:{image().fingerprint[:16]}"
    assert (record.declared, record.digest) == ("10.77.0.1:5000/engine:1", DIGEST)
    assert (record.engine, record.run_id) == (ENGINE, "run-1")


def test_an_image_that_only_lacks_its_names_is_named_not_sent(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    known_engine(work)
    are("x86_64", head, peer)
    holds(head, "engine:1", OWN)
    peer.on(*inspect(OWN), status=1, stderr="Error: No such image")
    holds(peer, "engine:1")
    peer.on("docker", "tag", "engine:1", OWN)
    holds(peer, OWN)
    result = stage.ensure(work)
    assert result.changed
    assert [command.text() for command in result.plan.commands] == [f"peer$ docker tag engine:1 {OWN}"]


def test_another_image_under_the_declared_name_on_a_peer_does_not_count(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    known_engine(work)
    are("x86_64", head, peer)
    holds(head, "engine:1", OWN)
    head.on("docker", "history", ..., stdout="0\n8\n")
    lacks(peer, OWN, image().image_id)
    holds(peer, "engine:1", command="/another")
    peer.on("docker", "info", ..., stdout="[]\n").on("docker", "image", "ls", ...)
    plan = stage.plan(work)
    assert plan.changes
    assert "peer: 3 of 3 layers are missing (8 B in all)" in plan.reasons
    assert plan.commands[-1].text().startswith(f"head$ docker save {OWN} engine:1 | ssh ")


def test_a_head_without_room_to_read_the_image_out_is_told_before_anything_is_sent(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    known_engine(work)
    are("x86_64", head, peer)
    holds(head, "engine:1", OWN)
    head.on("docker", "history", ..., stdout="0\n8\n")
    lacks(peer, OWN, "engine:1", image().image_id)
    peer.on("docker", "info", "--format", "{{json .DriverStatus}}", stdout="[]\n").on("docker", "image", "ls", ...)
    for host, free in ((head, 7), (peer, 800)):  # the image has 8 bytes
        host.on("docker", "info", "--format", "{{.DockerRootDir}}", stdout="/var/lib/docker\n")
        host.on("df", ..., "/var/lib/docker", stdout=f"Avail\n{free}\n")
    with pytest.raises(ImageError, match="no room to read engine:1 out") as caught:
        stage.ensure(work)
    assert caught.value.node == "head"
    assert "save" not in verbs(head)
    head.finish()


def test_no_registry_is_asked_for_what_the_head_holds(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, registry: dict[str, str]
) -> None:
    work = session(tmp_path, head, peer, "engine:1", "team/other:1")
    registry["team/other:1"] = DIGEST
    known_engine(work)
    are("x86_64", head, peer)
    lacks(head, "team/other:1")
    for host in (head, peer):
        holds(host, "engine:1", OWN)
    assert stage.plan(work).reasons[0] == "engine:1: on the head, from no registry"


def test_a_preferred_candidate_in_a_registry_is_planned_to_be_pulled_by_digest(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, registry: dict[str, str]
) -> None:
    work = session(tmp_path, head, peer, "team/engine:1", "vllm-node:latest")
    registry["team/engine:1"] = DIGEST
    are("x86_64", head, peer)
    lacks(head, "team/engine:1")
    holds(head, "vllm-node:latest")
    texts = [command.text() for command in stage.plan(work).commands]
    assert texts[:2] == [
        f"head$ docker pull team/engine@{DIGEST}",
        f"head$ docker tag team/engine@{DIGEST} team/engine:1",
    ]
    assert f"--entrypoint python3 team/engine@{DIGEST} -c" in texts[2]


def test_a_pull_that_fails_names_the_registry_setting_it_needs(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, registry: dict[str, str]
) -> None:
    work = session(tmp_path, head, peer, "10.77.0.1:5000/engine:1")
    registry["10.77.0.1:5000/engine:1"] = DIGEST
    are("x86_64", head, peer)
    lacks(head, "10.77.0.1:5000/engine:1")
    said = "Error response from daemon: http: server gave HTTP response to HTTPS client"
    head.on("docker", "pull", ..., status=1, stderr=said)
    with pytest.raises(ImageError) as caught:
        stage.ensure(work)
    assert caught.value.node == "head"
    assert 'add "10.77.0.1:5000" to insecure-registries' in caught.value.remedy


def test_a_pull_that_brings_nothing_is_not_repeated_for_ever(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, registry: dict[str, str]
) -> None:
    work = session(tmp_path, head, peer, "team/engine:1")
    registry["team/engine:1"] = DIGEST
    are("x86_64", head, peer)
    lacks(head, "team/engine:1")
    head.on("docker", "pull", ...).on("docker", "tag", ...)
    with pytest.raises(ImageError, match="was pulled, and is not there"):
        stage.ensure(work)


def test_with_a_digest_only_that_image_counts(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, registry: dict[str, str]
) -> None:
    work = session(tmp_path, head, peer, "team/engine:1", "team/other:1")
    registry[f"team/other@{DIGEST}"] = DIGEST
    are("x86_64", head, peer)
    lacks(head, f"team/engine@{DIGEST}", f"team/other@{DIGEST}")
    plan = stage.plan(work, digest=DIGEST)
    assert plan.reasons[0].startswith(f"team/engine@{DIGEST}: not on the head; no registry has team/engine@{DIGEST}")
    assert plan.commands[0].argv == ("docker", "pull", f"team/other@{DIGEST}")


def test_a_candidate_declared_by_another_digest_cannot_be_the_one_asked_for(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, f"team/engine@sha256:{'e' * 64}")
    with pytest.raises(ImageNotFoundError, match=f"no candidate can be at {DIGEST}"):
        stage.plan(work, digest=DIGEST)
    assert head.commands == []


def failing(error: RegistryError) -> Callable[[str], str]:
    def remote_digest(reference: str) -> str:
        raise error

    return remote_digest


def test_a_fault_of_a_registry_does_not_pass_on_to_the_next_candidate(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = RegistryError("registry docker.io does not show it", observed="429 Too Many Requests", remedy="wait")
    monkeypatch.setattr(observe, "remote_digest", failing(fault))
    work = session(tmp_path, head, peer, "team/engine:1", "team/other:1")
    are("x86_64", head, peer)
    lacks(head, "team/engine:1", "team/other:1")
    with pytest.raises(RegistryError, match="candidate team/engine:1 ") as caught:
        stage.ensure(work)
    assert caught.value.observed == "429 Too Many Requests"
    assert verbs(head) == {"uname -m", "docker image"}


def test_a_fault_of_a_registry_does_not_matter_behind_a_candidate_on_the_head(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "remote_digest", failing(RegistryError("no answer", observed="Connection refused")))
    work = session(tmp_path, head, peer, "engine:1", "team/other:1")
    known_engine(work)
    are("x86_64", head, peer)
    lacks(head, "team/other:1")
    for host in (head, peer):
        holds(host, "engine:1", OWN)
    assert not stage.plan(work).changes


def test_a_candidate_that_this_login_may_not_see_is_passed_over_with_its_reason(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = NotAllowedError("registry docker.io does not show it", observed="401 Unauthorized")
    monkeypatch.setattr(observe, "remote_digest", failing(refusal))
    work = session(tmp_path, head, peer, "team/engine:1", "engine:1")
    known_engine(work)
    are("x86_64", head, peer)
    lacks(head, "team/engine:1")
    for host in (head, peer):
        holds(host, "engine:1", OWN)
    plan = stage.plan(work)
    assert plan.reasons[0] == "team/engine:1: not on the head; registry docker.io does not show it (401 Unauthorized)"
    assert not plan.changes


def test_one_candidate_can_be_planned_by_itself(tmp_path: Path, head: ScriptedHost, peer: ScriptedHost) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    known_engine(work)
    are("x86_64", head, peer)
    for host in (head, peer):
        holds(host, "other:2", OWN)
    assert stage.plan(work, "other:2").reasons[0] == "other:2: on the head, from no registry"


def test_an_image_for_other_processors_is_refused_before_anything_is_run(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    are("aarch64", head, peer)
    holds(head, "engine:1")
    with pytest.raises(ImageError) as caught:
        stage.ensure(work)
    assert caught.value.observed == "engine:1: amd64 image on arm64 node head (aarch64)"
    assert verbs(head) == {"uname -m", "docker image"}


def test_without_a_record_the_next_stage_is_told_what_to_run(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    with pytest.raises(StateError) as caught:
        read_record(session(tmp_path, head, peer, "engine:1"))
    assert caught.value.remedy == "materialize tiny/vllm_image first"


def test_versions_list_what_is_there_only() -> None:
    assert ENGINE.model_copy(update={"ray": None}).versions() == {
        "vllm": "0.32.0",
        "torch": "2.13.0+cpu",
        "transformers": "5.17.0",
        "python": "3.11.2",
    }
    assert "ray" in ENGINE.versions()
