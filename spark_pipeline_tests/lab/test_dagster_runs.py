"""A deployment's life as its users lead it: jobs, sensors under a running `dagster dev`, a cancelled run, the command
line. On two real nodes, with the stand-in engine; its hub repository and its image are this file's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from spark_pipeline.errors import LabError
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.lab import registry
from spark_pipeline.lab.hub_store import move_branch, publish
from spark_pipeline.lab.images import standin_image
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.tiny_models import tiny_files
from spark_pipeline.serving.record import ServingRecord, find_record
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.webserver import REPOSITORY, Webserver, webserver

pytestmark = pytest.mark.lab

NAME = "followed"
REPO = "lab/followed"
REPOSITORY_OF_IMAGES = "test-dagster/engine"
RUN_SECONDS = 300
SELECTOR = 'repositoryLocationName: "spark_pipeline", repositoryName: "__repository__"'


def say(text: str) -> None:
    print(text, file=sys.stderr)


@dataclass(frozen=True)
class World:
    """A project of the test's own on the shared lab, and what hub and registry hold for it."""

    lab: Lab
    root: Path
    home: Path
    commits: tuple[str, str]
    digests: tuple[str, str]

    @property
    def environment(self) -> dict[str, str]:
        own = {"SPARK_PIPELINE_ROOT": str(self.root), "DAGSTER_HOME": str(self.home), "PYTHONWARNINGS": "ignore"}
        return dict(os.environ) | own

    def start(self, program: str, *words: str, stderr: int = subprocess.STDOUT) -> subprocess.Popen[str]:
        """A command of the project, as typed in another folder."""
        argv = [str(Path(sys.executable).with_name(program)), *words]
        return subprocess.Popen(
            argv,
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,  # a process group of its own, as a terminal gives it
        )

    def run(self, program: str, *words: str) -> str:
        """What it printed on stdout, once it has succeeded."""
        with self.start(program, *words, stderr=subprocess.PIPE) as process:
            said, progress = process.communicate(timeout=RUN_SECONDS)
        assert process.returncode == 0, f"{said[-4000:]}\n{progress[-4000:]}"
        return said

    def deploy(self) -> ServingRecord:
        self.run("dagster", "job", "execute", "-m", "spark_pipeline.definitions", "-j", f"deploy_{NAME}")
        return self.record()

    def record(self) -> ServingRecord:
        record = find_record(Project.load(self.root), NAME)
        assert record is not None
        return record

    def serves(self) -> bool:
        return find_record(Project.load(self.root), NAME) is not None

    def containers(self) -> set[str]:
        """Names on both nodes, running or not."""
        ask = ["docker", "ps", "--all", "--filter", f"label=spark_pipeline.deployment={NAME}", "--format", "{{.Names}}"]
        return {name for node in ("head", "peer") for name in self.lab.run_in_node(node, ask).stdout.split()}


@pytest.fixture(scope="module")
def world(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root, home = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("dagster_home")
    shutil.copy(REPOSITORY / "dagster.yaml", home)
    images = [standin_image(lab, say, tag).reference for tag in ("dagster-1", "dagster-2")]
    second, first = (registry.push(lab, image, REPOSITORY_OF_IMAGES, "moving") for image in reversed(images))
    commits = tuple(publish(lab.paths.hub, REPO, tiny_files(revision), branch=None) for revision in (1, 2))
    move_branch(lab.paths.hub, REPO, "main", commits[0])
    declare(root, lab)
    project = Project.load(root)
    enroll(project.fleet("lab"), project.known_hosts, say)
    made = World(lab, root, home, (commits[0], commits[1]), (first, second))
    yield made
    made.run("spark-pipeline", "stop", NAME)
    for tag in registry.tags(lab, REPOSITORY_OF_IMAGES):
        try:
            registry.delete(lab, REPOSITORY_OF_IMAGES, tag)
        except LabError:  # an earlier tag of the same digest took it along
            continue
    for node in ("head", "peer"):
        name = registry.name_in_registry(lab, REPOSITORY_OF_IMAGES, "moving")
        lab.run_in_node(node, ["docker", "image", "rm", "--force", *images, name])


def declare(root: Path, lab: Lab, **serve: object) -> None:
    for folder in ("fleets", "profiles"):
        (root / "data" / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "data" / "fleets" / "lab.yaml", root / "data" / "fleets")
    shutil.copy(REPOSITORY / "data" / "profiles" / "smoke.yaml", root / "data" / "profiles")
    declared = {
        "name": NAME,
        "fleet": "lab",
        "model": {"repo": REPO, "revision": "main", "hub_url": lab.plan.hub_url},
        "image": {
            "candidates": [registry.name_in_registry(lab, REPOSITORY_OF_IMAGES, "moving")],
            "augment": "never",
        },
        "parallel": {"tensor": 2, "pipeline": 1},
        "backend": "mp",
        "serve": {
            "port": 8140,
            "served_name": NAME,
            "max_model_len": 512,
            "start_timeout_seconds": 120,
            **serve,
        },
        "benchmark": {"profiles": ["smoke"]},
    }
    file = root / "data" / "deployments" / f"{NAME}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(declared), encoding="utf-8")


@pytest.fixture
def deployed(world: World) -> World:
    """Serving as declared, whatever the test before did."""
    declare(world.root, world.lab)
    world.deploy()
    return world


@pytest.fixture(scope="module")
def dev(world: World) -> Iterator[Webserver]:
    with webserver(world.home, world.home, ("dagster", "dev"), SPARK_PIPELINE_ROOT=str(world.root)) as running:
        yield running


def switch(dev: Webserver, sensor: str, *, on: bool) -> None:
    """What the switch in the UI does."""
    if on:
        dev.ask(f'mutation {{startSensor(sensorSelector: {{{SELECTOR}, sensorName: "{sensor}"}}) {{__typename}}}}')
        return
    found = dev.ask(
        f'{{sensorOrError(sensorSelector: {{{SELECTOR}, sensorName: "{sensor}"}}) {{...on Sensor {{id}}}}}}'
    )
    dev.ask(f'mutation {{stopSensor(id: "{found["sensorOrError"]["id"]}") {{__typename}}}}')


def runs(dev: Webserver) -> list[dict]:
    """Newest first."""
    return dev.ask("{runsOrError{...on Runs{results{status jobName tags{key value}}}}}")["runsOrError"]["results"]


def wait_for(what: Callable[[], bool], seconds: float, of: str) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"{of} did not happen within {seconds:g} s"
        time.sleep(1)


def test_the_job_deploys_and_measures_and_a_repeat_changes_nothing(deployed):
    first = deployed.record()
    points = json.loads(deployed.run("spark-pipeline", "history", NAME, "--json"))
    assert len(points) == 2
    assert {point["commit"] for point in points} == {first.generation.commit}

    assert deployed.deploy() == first
    assert json.loads(deployed.run("spark-pipeline", "history", NAME, "--json")) == points


def test_the_measuring_job_measures_again_and_restarts_nothing(deployed):
    before, record = json.loads(deployed.run("spark-pipeline", "history", NAME, "--json")), deployed.record()
    deployed.run("dagster", "job", "execute", "-m", "spark_pipeline.definitions", "-j", f"measure_{NAME}")
    after = json.loads(deployed.run("spark-pipeline", "history", NAME, "--json"))
    assert len(after) == len(before) + 2
    assert deployed.record() == record


def test_status_and_plan_tell_what_runs(deployed):
    status, *others = json.loads(deployed.run("spark-pipeline", "status", "--json"))
    assert (status["deployment"], status["answers"], others) == (NAME, [NAME], [])
    assert [(rank["node"], rank["state"]) for rank in status["ranks"]] == [("head", "running"), ("peer", "running")]
    plans = json.loads(deployed.run("spark-pipeline", "plan", NAME, "--json"))
    assert [plan["changes"] for plan in plans] == [False] * 6


def test_a_branch_that_moves_on_the_hub_is_deployed_by_the_sensor(deployed, dev):
    old, new = deployed.record().generation.commit, deployed.commits[1]
    assert old == deployed.commits[0]
    move_branch(deployed.lab.paths.hub, REPO, "main", new)
    switch(dev, "model_revision_sensor", on=True)
    try:
        wait_for(
            lambda: deployed.serves() and deployed.record().generation.commit == new, RUN_SECONDS, "the deployment"
        )
        wait_for(lambda: runs(dev)[0]["status"] == "SUCCESS", RUN_SECONDS, "the end of the run")
    finally:
        switch(dev, "model_revision_sensor", on=False)
    tags = {tag["key"]: tag["value"] for tag in runs(dev)[0]["tags"]}
    assert tags["spark_pipeline/value"] == new
    assert tags["dagster/run_key"] == f"{NAME}:{new}:attempt1"


def test_a_tag_that_moves_in_the_registry_is_deployed_by_the_sensor(deployed, dev):
    assert deployed.record().generation.image_digest == deployed.digests[0]
    assert registry.push(deployed.lab, "vllm-standin:dagster-2", REPOSITORY_OF_IMAGES, "moving") == deployed.digests[1]
    switch(dev, "vllm_image_sensor", on=True)
    try:
        wait_for(
            lambda: deployed.serves() and deployed.record().generation.image_digest == deployed.digests[1],
            RUN_SECONDS,
            "the deployment",
        )
        wait_for(lambda: runs(dev)[0]["status"] == "SUCCESS", RUN_SECONDS, "the end of the run")
    finally:
        switch(dev, "vllm_image_sensor", on=False)
    assert len([run for run in runs(dev) if any(tag["key"] == "spark_pipeline/asked_by" for tag in run["tags"])]) == 2


def interrupt_like_a_terminal(run: subprocess.Popen[str]) -> None:
    """Ctrl-C reaches Dagster and its steps at once, and the steps once more through Dagster."""
    os.killpg(run.pid, signal.SIGINT)


@pytest.mark.parametrize(
    "end",
    [
        lambda run: run.send_signal(signal.SIGINT),
        lambda run: run.send_signal(signal.SIGTERM),
        interrupt_like_a_terminal,
    ],
    ids=["interrupted", "terminated", "ctrl-c"],
)
def test_a_cancelled_run_leaves_nothing_running_and_the_fleet_free(deployed, end):
    declare(deployed.root, deployed.lab, env={"STANDIN_FAULT": "never_ready"})
    select = f'key:"{NAME}/ray_cluster"+1'
    with deployed.start(
        "dagster", "asset", "materialize", "--select", select, "-m", "spark_pipeline.definitions"
    ) as run:
        for line in run.stdout or ():
            if "telling every rank what to serve" in line:
                break
        time.sleep(2)
        end(run)
        run.communicate(timeout=120)
    assert run.returncode != 0
    assert deployed.containers() == set()
    assert not deployed.serves()
    assert deployed.run("spark-pipeline", "stop", NAME) == f"{NAME}: nothing was running\n"


def test_a_run_that_fails_says_why_and_leaves_nothing_running(deployed):
    declare(deployed.root, deployed.lab, env={"STANDIN_FAULT": "empty_answer"})
    with deployed.start("dagster", "job", "execute", "-m", "spark_pipeline.definitions", "-j", f"deploy_{NAME}") as run:
        said, _ = run.communicate(timeout=RUN_SECONDS)
    assert run.returncode == 1
    assert "[head]" in said
    assert deployed.containers() == set()
