"""Cluster and serving on two real nodes with the stand-in engine: what goes wrong, who is told, what is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from spark_pipeline.cluster import containers, join
from spark_pipeline.compatibility import stage as compatibility
from spark_pipeline.errors import (
    ClusterError,
    CommandTimeoutError,
    EngineExitedError,
    JoinError,
    LeaseHeldError,
    ReadinessTimeoutError,
    SparkPipelineError,
    UnreachableError,
    WrongAnswerError,
)
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.image import stage as image
from spark_pipeline.lab.images import standin_image
from spark_pipeline.lab.lab import Lab
from spark_pipeline.serving import api, readiness
from spark_pipeline.serving import stage as serving
from spark_pipeline.serving.record import find_record
from spark_pipeline.serving.status import status
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import stage as weights

pytestmark = pytest.mark.lab

DATA = Path(__file__).parents[2] / "data"
NAME = "standin"
PORT = 8100


def say(text: str) -> None:
    print(text, file=sys.stderr)


@pytest.fixture(scope="module")
def root(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project whose deployment has its weights and the stand-in image on both nodes."""
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()
    for folder in ("fleets", "profiles"):
        shutil.copytree(DATA / folder, root / "data" / folder)
    (root / "data" / "fleets" / "sparks.yaml").unlink()
    reference = standin_image(lab, say).reference
    declare(root, image=reference)
    project = Project.load(root)
    enroll(project.fleet("lab"), project.known_hosts, say)
    with open_session(project, NAME, progress=say, run_id="test") as session:
        weights.ensure(session)
        compatibility.ensure(session)
        image.ensure(session)
        yield root
        serving.stop(session)


def declare(root: Path, *, image: str = "", backend: str = "mp", seconds: int = 60, fault: str = "", args=()) -> None:
    """Write the deployment; `fault` is one of the stand-in's (spark_pipeline/lab/stand_in)."""
    file = root / "data" / "deployments" / f"{NAME}.yaml"
    before = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
    candidates = [image] if image else before["image"]["candidates"]
    declared = {
        "name": NAME,
        "fleet": "lab",
        "model": {"repo": "lab/tiny", "revision": "main", "hub_url": "http://10.77.0.1:8090"},
        "image": {"candidates": candidates, "augment": "never"},
        "parallel": {"tensor": 2, "pipeline": 1},
        "backend": backend,
        "serve": {
            "port": PORT,
            "served_name": "stand-in",
            "max_model_len": 512,
            "args": list(args),
            "env": {"STANDIN_FAULT": fault} if fault else {},
            "start_timeout_seconds": seconds,
        },
        "benchmark": {"profiles": ["smoke"]},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(declared), encoding="utf-8")


@pytest.fixture
def session(root: Path) -> Iterator[Session]:
    """Declares a healthy deployment first and leaves nothing behind; `again` re-reads what a test declared."""
    declare(root)
    with open_session(Project.load(root), NAME, progress=say, run_id="test") as session:
        serving.stop(session)
        compatibility.ensure(session)  # the test before may have declared another backend
        yield session
        serving.stop(session)


def again(session: Session) -> Session:
    """The same machines, with the declarations as they are now: another backend is decided on anew."""
    project = Project.load(session.project.root)
    now = Session(project, project.deployment(NAME), session.connection, session.progress, session.run_id)
    compatibility.ensure(now)
    return now


def names_on_nodes(session: Session) -> set[str]:
    running, _ = containers.observe(session)
    return {container.name for container in running.containers}


@pytest.mark.parametrize("backend", ["ray", "mp"])
def test_serves_then_does_nothing_then_stops_without_a_trace(session: Session, root: Path, backend: str):
    declare(root, backend=backend)
    session = again(session)
    first = serving.ensure(session)
    assert first.changed
    assert first.completion.tokens >= 1
    assert first.record.model_id == "stand-in"
    assert api.model_ids(session.head, PORT) == ("stand-in",)
    assert status(session).serves

    second = serving.ensure(session)
    assert not second.changed
    assert second.record == first.record

    removed = serving.stop(session)
    assert {container.node for container in removed} == {"head", "peer"}
    assert names_on_nodes(session) == set()
    assert find_record(session.project, NAME) is None
    assert api.model_ids(session.head, PORT) is None


def test_another_argument_is_another_generation_and_the_old_one_is_gone(session: Session, root: Path):
    first = serving.ensure(session).record.generation
    declare(root, args=["--max-num-seqs", "4"])
    session = again(session)
    second = serving.ensure(session).record.generation
    assert second.number == first.number + 1
    assert second.spec_hash != first.spec_hash
    assert names_on_nodes(session) == {rank.container for rank in second.ranks}


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("exit_at_start", EngineExitedError, "engine ended with status 1"),
        ("wrong_model_id", WrongAnswerError, "answers with another model"),
        ("empty_answer", WrongAnswerError, "log probabilities are not numbers"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing_but_its_log(
    session: Session, root: Path, fault: str, error: type[SparkPipelineError], words: str
):
    declare(root, fault=fault)
    session = again(session)
    with pytest.raises(error) as caught:
        serving.ensure(session)
    assert words in caught.value.what
    assert caught.value.node == "head"
    assert caught.value.observed
    assert names_on_nodes(session) == set()
    assert find_record(session.project, NAME) is None
    logs = sorted((session.state_dir / "logs").glob("*.log"), key=lambda file: file.stat().st_mtime)
    assert {file.stem.split("-")[-1] for file in logs[-2:]} == {"head", "peer"}


def test_an_engine_that_never_gets_ready_is_ended_when_its_time_is_over(session: Session, root: Path):
    declare(root, fault="never_ready", seconds=10)
    session = again(session)
    started = time.monotonic()
    with pytest.raises(ReadinessTimeoutError) as caught:
        serving.ensure(session)
    assert "start_timeout_seconds" in caught.value.remedy
    assert time.monotonic() - started < 60
    assert names_on_nodes(session) == set()


def test_a_rank_that_dies_on_the_peer_while_loading_is_noticed_and_named(session: Session, root: Path):
    declare(root, fault="never_ready", seconds=120)
    session = again(session)

    def kill_when_loading() -> None:
        docker = Docker(session.connection.host("peer"))
        for _ in range(200):
            running = [
                item for item in docker.containers({"spark_pipeline.deployment": NAME}) if item.state == "running"
            ]
            if running and "serve.sh" in containers.marks(docker, running[0].name):
                time.sleep(2)
                docker.host.run(("docker", "kill", running[0].name), timeout=30)
                return
            time.sleep(0.2)

    killer = threading.Thread(target=kill_when_loading)
    killer.start()
    started = time.monotonic()
    with pytest.raises(EngineExitedError) as caught:
        serving.ensure(session)
    killer.join()
    assert caught.value.node == "peer"
    assert "rank 1" in caught.value.what
    assert time.monotonic() - started < 60  # today's launchers stay silent for minutes
    assert names_on_nodes(session) == set()


def test_a_taken_port_is_found_before_anything_starts(session: Session, lab: Lab):
    program = f"import socket,time; s=socket.create_server(('0.0.0.0', {PORT})); time.sleep(60)"
    holder = threading.Thread(
        target=lambda: lab.run_in_node("head", ["timeout", "20", "python3", "-c", program], timeout=40), daemon=True
    )
    holder.start()
    time.sleep(1)
    with pytest.raises(ClusterError) as caught:
        serving.ensure(session)
    assert f"port {PORT} is taken" in caught.value.what
    assert caught.value.node == "head"
    assert names_on_nodes(session) == set()
    holder.join()


def test_a_member_that_does_not_join_ray_is_named_before_anything_is_served(
    session: Session, root: Path, monkeypatch: pytest.MonkeyPatch
):
    declare(root, backend="ray", fault="ray_missing_member")
    session = again(session)
    monkeypatch.setattr(join, "JOIN_TIMEOUT_SECONDS", 30.0)
    with pytest.raises(JoinError) as caught:
        serving.ensure(session)
    assert caught.value.node == "peer"
    assert "did not join: 192.168.200.13" in caught.value.what
    assert names_on_nodes(session) == set()


def test_weights_that_lost_their_proof_stop_a_new_generation_before_the_old_one(session: Session, root: Path, lab: Lab):
    old = serving.ensure(session).record.generation
    marker = f"{old.model_directory}/.spark_pipeline/complete.json"
    lab.run_in_node("peer", ["mv", marker, f"{marker}.away"], timeout=20)
    try:
        declare(root, args=["--max-num-seqs", "8"])
        with pytest.raises(ClusterError) as caught:
            serving.ensure(again(session))
        assert caught.value.node == "peer"
        assert "verified model" in caught.value.what
        assert names_on_nodes(session) == {rank.container for rank in old.ranks}
        assert api.model_ids(session.head, PORT) == ("stand-in",)
    finally:
        lab.run_in_node("peer", ["mv", f"{marker}.away", marker], timeout=20)


def test_a_look_that_fails_does_not_take_a_serving_engine_down(session: Session, monkeypatch: pytest.MonkeyPatch):
    served = serving.ensure(session).record.generation

    def deaf(*_: object) -> tuple[str, ...]:
        raise UnreachableError("the connection broke", node="head")

    monkeypatch.setattr(api, "model_ids", deaf)
    monkeypatch.setattr(readiness, "DEAF_SECONDS", 3.0)
    with pytest.raises(UnreachableError):
        serving.ensure(session)
    monkeypatch.undo()
    assert names_on_nodes(session) == {rank.container for rank in served.ranks}
    assert not serving.ensure(session).changed


def test_a_start_survives_a_while_without_a_word_from_the_nodes(session: Session, monkeypatch: pytest.MonkeyPatch):
    real, silent_calls = api.model_ids, iter(range(3))

    def deaf_at_first(host: Host, port: int) -> tuple[str, ...] | None:
        if next(silent_calls, None) is not None:
            raise CommandTimeoutError("no answer", node=host.name)
        return real(host, port)

    monkeypatch.setattr(api, "model_ids", deaf_at_first)
    assert serving.ensure(session).changed


def test_a_lost_lease_stops_the_next_change(session: Session):
    def lost() -> None:
        raise LeaseHeldError("somebody else is changing this fleet")

    with pytest.raises(LeaseHeldError):
        serving.ensure(replace(session, guard=lost))
    assert names_on_nodes(session) == set()


_DEPLOY = """
import sys
from pathlib import Path
from spark_pipeline.fleet.session import open_session
from spark_pipeline.serving import stage
from spark_pipeline.spec.project import Project
say = lambda text: print(text, flush=True)
with open_session(Project.load(Path(sys.argv[1])), sys.argv[2], progress=say, run_id="cancelled") as session:
    stage.ensure(session)
"""


def test_cancelling_while_the_engine_loads_removes_what_was_started(session: Session, root: Path):
    declare(root, fault="never_ready", seconds=300)
    process = subprocess.Popen(
        [sys.executable, "-c", _DEPLOY, str(root), NAME], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "telling every rank" in line:
            break
    time.sleep(3)
    assert len(names_on_nodes(session)) == 2
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in rest
    assert names_on_nodes(session) == set()
