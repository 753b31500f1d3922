"""The stage on scripted machines: what it asks, what it changes, what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pipeline.errors import ImageError, StateError
from spark_pipeline.fleet.session import Session
from spark_pipeline.image import facts, stage
from spark_pipeline.image.choice import keep_choice, read_choice
from spark_pipeline.image.plan import own_tag
from spark_pipeline.image.record import read_record
from spark_pipeline.spec import store
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.choices import choice_of
from spark_pipeline_tests.doubles import ScriptedHost
from spark_pipeline_tests.projects import scripted_session, tiny_project
from spark_pipeline_tests.unit.image.samples import DIGEST, ENGINE, PROBED, image, image_json

OWN = own_tag(image().fingerprint)


@pytest.fixture
def head() -> ScriptedHost:
    return ScriptedHost("head")


@pytest.fixture
def peer() -> ScriptedHost:
    return ScriptedHost("peer")


def session(tmp_path: Path, head: ScriptedHost, peer: ScriptedHost, *candidates: str) -> Session:
    made = scripted_session(tiny_project(tmp_path, *candidates), head, peer)
    keep_choice(made, choice_of(made, candidates[0], image()))
    return made


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


def verbs(host: ScriptedHost) -> set[str]:
    return {" ".join(argv[:2]) for argv in host.commands}


def test_when_every_node_has_it_nothing_is_changed_and_it_says_so(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    known_engine(work)
    for host in (head, peer):
        holds(host, "engine:1", OWN)
    result = stage.ensure(work)
    assert not result.changed
    assert not result.plan.changes
    assert result.plan.commands == ()
    assert verbs(head) | verbs(peer) == {"docker image"}
    assert all(node.already_there and node.sent_bytes == 0 for node in result.nodes)


def test_the_record_names_the_image_by_what_is_in_it(tmp_path: Path, head: ScriptedHost, peer: ScriptedHost) -> None:
    work = session(tmp_path, head, peer, "10.77.0.1:5000/engine:1")
    known_engine(work)
    keep_choice(work, choice_of(work, "10.77.0.1:5000/engine:1", image(), digest=DIGEST))
    holds(head, f"10.77.0.1:5000/engine@{DIGEST}")
    for host in (head, peer):
        holds(host, "10.77.0.1:5000/engine:1", OWN)
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
    holds(head, "engine:1", OWN)
    head.on("docker", "history", ..., stdout="0\n8\n")
    lacks(peer, OWN, image().image_id)
    holds(peer, "engine:1", command="/another")
    peer.on("docker", "info", ..., stdout="[]\n").on("docker", "image", "ls", ...)
    plan = stage.plan(work, read_choice(work))
    assert plan.changes
    assert "peer: 3 of 3 layers are missing (8 B in all)" in plan.reasons
    assert plan.commands[-1].text().startswith(f"head$ docker save {OWN} engine:1 | ssh ")


def test_a_head_without_room_to_read_the_image_out_is_told_before_anything_is_sent(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    known_engine(work)
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


def test_with_nothing_decided_the_report_is_asked_for(tmp_path: Path, head: ScriptedHost, peer: ScriptedHost) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    (work.state_dir / "choice.json").unlink()
    with pytest.raises(StateError) as caught:
        stage.ensure(work)
    assert caught.value.remedy == "materialize tiny/compatibility_report first"
    assert head.commands == []


def test_a_decision_for_another_declaration_is_not_followed(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    session(tmp_path, head, peer, "engine:1")
    path = tmp_path / "data" / "deployments" / "tiny.yaml"
    path.write_text(path.read_text().replace("tensor: 2", "tensor: 1"))
    work = scripted_session(Project.load(tmp_path), head, peer, "run-2")
    with pytest.raises(StateError, match="for another declaration of tiny"):
        stage.ensure(work)


def test_a_decision_at_another_digest_is_not_followed(tmp_path: Path, head: ScriptedHost, peer: ScriptedHost) -> None:
    work = session(tmp_path, head, peer, "team/engine:1")
    with pytest.raises(StateError, match=f"not at {DIGEST}") as caught:
        stage.ensure(work, digest=DIGEST)
    assert "compatibility_report with the same digest" in caught.value.remedy


def test_an_image_that_changed_since_it_was_judged_goes_nowhere(
    tmp_path: Path, head: ScriptedHost, peer: ScriptedHost
) -> None:
    work = session(tmp_path, head, peer, "engine:1")
    holds(head, "engine:1", command="/another")
    lacks(head, OWN)
    with pytest.raises(ImageError, match="is not the image any more") as caught:
        stage.ensure(work)
    assert caught.value.node == "head"
    assert "compatibility_report again" in caught.value.remedy
    assert peer.commands == []


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
