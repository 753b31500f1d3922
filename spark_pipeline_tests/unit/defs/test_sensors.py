"""When a sensor asks for a deployment, and when it must not: on a real Dagster instance, a real hub on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test

from spark_pipeline.cluster.record import write_generation
from spark_pipeline.defs import upstream
from spark_pipeline.defs.build import build
from spark_pipeline.defs.sensors import MAX_ATTEMPTS, tick
from spark_pipeline.defs.upstream import MODEL_REVISION, VLLM_IMAGE, Upstream
from spark_pipeline.errors import RegistryError
from spark_pipeline.image.record import ImageRecord
from spark_pipeline.lab.hub_server import HubServer
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.serving.record import LAST_GOOD, SERVING, ServingRecord
from spark_pipeline.spec import store
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.unit.benchmark.samples import IMAGE, NOON, generation
from spark_pipeline_tests.unit.image.samples import ENGINE

OLD = "sha256:" + "a" * 64
NEW = "sha256:" + "b" * 64
NEWER = "sha256:" + "c" * 64
SENSOR = "vllm_image_sensor"
FILES = {"config.json": b"{}", "weights.bin": b"one"}


def serving(project: Project, deployment: str = "tiny", **changed: object) -> None:
    """`deployment` serves, as its record says."""
    record = ServingRecord(
        generation=generation(**{"deployment": deployment, "image_digest": OLD, **changed}),
        url="http://10.77.0.10:8000",
        model_id=deployment,
        ready_seconds=40.0,
        container_ids=("1", "2"),
        run_id="run",
    )
    store.write(project.state_dir(deployment) / LAST_GOOD, record)
    store.write(project.state_dir(deployment) / SERVING, record)
    write_generation(project.state_dir(deployment), record.generation)


def told(deployment: str, digest: str) -> dict[str, object]:
    """What a run is told about an image: the report also whose digest it is, as several may be declared."""
    return {
        "ops": {
            f"{deployment}__compatibility_report": {"config": {"digest": digest, "image": generation().image_declared}},
            f"{deployment}__vllm_image": {"config": {"digest": digest}},
        }
    }


def stopped(project: Project) -> None:
    """`tiny` was stopped; so its record looks after a failure too."""
    (project.state_dir("tiny") / SERVING).unlink()


def failed(project: Project, **changed: object) -> None:
    """A later generation of `tiny` was started, and did not come to serve."""
    write_generation(project.state_dir("tiny"), generation(**{"number": 4, "image_digest": OLD, **changed}))
    stopped(project)


def image_is(project: Project, digest: str, fingerprint: str = IMAGE) -> None:
    """What the image stage wrote down last."""
    record = ImageRecord(
        reference="localhost/spark-pipeline/engine:4f2ac91b07de",
        declared="vllm-cpu:0.32.0",
        digest=digest,
        fingerprint=fingerprint,
        size_bytes=8,
        engine=ENGINE,
        run_id="run-2",
        verified_at=NOON,
    )
    store.write(project.state_dir("tiny") / "image.json", record)


def offering(value: str) -> Upstream:
    """The image sensor, for a registry that offers this digest."""
    return replace(VLLM_IMAGE, ask=lambda deployment, record: value)


def requests(result: dg.SensorResult) -> list[dg.RunRequest]:
    return list(result.run_requests or ())


def why_not(result: dg.SensorResult) -> str:
    assert not result.run_requests
    return str(result.skip_reason.skip_message) if result.skip_reason else ""


def run_of(instance: dg.DagsterInstance, request: dg.RunRequest, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    """The run that the daemon would have made of a request, as it ended."""
    return create_run_for_test(instance, job_name=str(request.job_name), tags=dict(request.tags), status=status)


def test_nothing_is_asked_for_before_the_first_deployment(instance, project):
    assert "tiny: nothing is deployed yet" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_nothing_is_asked_for_while_the_newest_serves(instance, project):
    serving(project)
    assert "image digest aaaaaaaaaaaa serves and is the newest" in why_not(
        tick(instance, SENSOR, offering(OLD), project)
    )


def test_a_new_value_asks_for_one_run_with_exactly_that_value(instance, project):
    serving(project)
    (request,) = requests(tick(instance, SENSOR, offering(NEW), project))
    assert request.job_name == "deploy_tiny"
    assert request.run_key == f"tiny:{NEW}:attempt1"
    assert request.run_config == told("tiny", NEW)


def test_the_requested_configuration_is_what_the_job_takes(instance, project):
    serving(project)
    (request,) = requests(tick(instance, SENSOR, offering(NEW), project))
    job = build(project).resolve_job_def("deploy_tiny")
    assert dg.validate_run_config(job, dict(request.run_config))["ops"]["tiny__vllm_image"]["config"]["digest"] == NEW


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
)
def test_a_run_of_the_job_that_goes_on_is_waited_for(instance, project, status):
    serving(project)
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("spark_pipeline"), "__repository__")
    create_run_for_test(
        instance,
        "deploy_tiny",
        status=status,
        tags={"spark_pipeline/deployment": "tiny"},
        remote_job_origin=RemoteJobOrigin(origin, "deploy_tiny"),  # a queued run must know where it comes from
    )
    assert f"of it is {status.value}" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_assets_that_a_person_materializes_are_waited_for(instance, project):
    serving(project)
    create_run_for_test(
        instance,
        "__ASSET_JOB",
        status=dg.DagsterRunStatus.STARTED,
        asset_selection=frozenset([dg.AssetKey(["tiny", "ray_cluster"])]),
    )
    assert "of it is STARTED" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_another_deployments_run_is_not_waited_for(instance, project):
    serving(project)
    create_run_for_test(
        instance, "deploy_x", status=dg.DagsterRunStatus.STARTED, tags={"spark_pipeline/deployment": "tiny_qwen35"}
    )
    assert len(requests(tick(instance, SENSOR, offering(NEW), project))) == 1


def test_a_failed_run_is_tried_again_under_a_new_key_and_not_for_ever(instance, project):
    serving(project)
    keys = []
    for _ in range(MAX_ATTEMPTS):
        (request,) = requests(tick(instance, SENSOR, offering(NEW), project))
        keys.append(request.run_key)
        run_of(instance, request, dg.DagsterRunStatus.FAILURE)
    assert keys == [f"tiny:{NEW}:attempt{attempt}" for attempt in (1, 2, 3)]
    reason = why_not(tick(instance, SENSOR, offering(NEW), project))
    assert "was asked for 3 times and does not serve" in reason
    assert "launch deploy_tiny by hand" in reason


def test_runs_that_succeed_without_the_value_being_served_end_too(instance, project):
    serving(project)
    for _ in range(MAX_ATTEMPTS):
        (request,) = requests(tick(instance, SENSOR, offering(NEW), project))
        run_of(instance, request, dg.DagsterRunStatus.SUCCESS)
    assert "does not serve" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_a_value_that_moves_again_is_tried_although_the_one_before_failed_too_often(instance, project):
    serving(project)
    for _ in range(MAX_ATTEMPTS):
        (request,) = requests(tick(instance, SENSOR, offering(NEW), project))
        run_of(instance, request, dg.DagsterRunStatus.FAILURE)
    (request,) = requests(tick(instance, SENSOR, offering(NEWER), project))
    assert request.run_key == f"tiny:{NEWER}:attempt1"


def test_a_value_that_comes_back_gets_a_key_that_was_never_used(instance, project):
    serving(project)
    for value in (NEW, NEWER):
        (request,) = requests(tick(instance, SENSOR, offering(value), project))
        run_of(instance, request, dg.DagsterRunStatus.SUCCESS)
    serving(project, image_digest=NEWER)
    (request,) = requests(tick(instance, SENSOR, offering(NEW), project))
    assert request.run_key == f"tiny:{NEW}:attempt2"


def test_what_was_stopped_on_purpose_is_not_deployed_again(instance, project):
    serving(project)
    stopped(project)
    assert "tiny: generation 3 was good and was stopped" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_after_a_failed_deployment_a_fix_is_deployed(instance, project):
    serving(project)
    failed(project, image_digest=NEW)
    (request,) = requests(tick(instance, SENSOR, offering(NEWER), project))
    assert request.run_key == f"tiny:{NEWER}:attempt1"


def test_after_a_failed_deployment_going_back_to_what_was_good_is_a_fix_too(instance, project):
    serving(project)
    failed(project, image_digest=NEW)
    (request,) = requests(tick(instance, SENSOR, offering(OLD), project))
    assert request.run_key == f"tiny:{OLD}:attempt1"


def test_a_value_that_failed_is_not_tried_for_ever(instance, project):
    serving(project)
    for number in range(MAX_ATTEMPTS):
        (request,) = requests(tick(instance, SENSOR, offering(NEW), project))
        run_of(instance, request, dg.DagsterRunStatus.FAILURE)
        write_generation(project.state_dir("tiny"), generation(number=4 + number, image_digest=NEW))
        (project.state_dir("tiny") / SERVING).unlink(missing_ok=True)
    assert "was asked for 3 times and does not serve" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_a_deployment_that_failed_for_something_else_is_not_tried_again(instance, project):
    serving(project)
    failed(project)
    assert "the deployment failed for something else" in why_not(tick(instance, SENSOR, offering(OLD), project))


def test_what_serves_again_after_a_failure_and_is_stopped_stays_stopped(instance, project):
    serving(project)
    failed(project, image_digest=NEW)
    serving(project, number=5)
    stopped(project)
    assert "generation 5 was good and was stopped" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_a_digest_that_moved_to_the_image_that_serves_is_the_newest(instance, project):
    serving(project)
    image_is(project, NEW)
    assert "image digest bbbbbbbbbbbb serves and is the newest" in why_not(
        tick(instance, SENSOR, offering(NEW), project)
    )


def test_the_digest_of_an_image_that_does_not_serve_does_not_count(instance, project):
    serving(project)
    image_is(project, NEW, fingerprint="0" * 64)
    assert len(requests(tick(instance, SENSOR, offering(NEW), project))) == 1


def test_a_registry_that_does_not_answer_is_a_reason_to_skip(instance, project):
    serving(project)

    def refuse(*_: object) -> str:
        raise RegistryError("registry x does not show y", observed="connection refused")

    reason = why_not(tick(instance, SENSOR, replace(VLLM_IMAGE, ask=refuse), project))
    assert "tiny: registry x does not show y: connection refused" in reason


def test_one_silent_registry_does_not_hold_up_the_other_deployments(instance, project, monkeypatch):
    monkeypatch.setattr(upstream, "TICK_BUDGET_SECONDS", 0.3)
    serving(project)
    serving(project, "tiny_qwen35")
    ended = threading.Event()

    def ask(deployment, _) -> str:
        if deployment.name == "tiny":
            ended.wait(10)
        return NEW

    try:
        (request,) = requests(tick(instance, SENSOR, replace(VLLM_IMAGE, ask=ask), project))
        assert request.job_name == "deploy_tiny_qwen35"
    finally:
        ended.set()


def test_an_image_from_no_registry_is_not_asked_about(instance, project):
    serving(project, image_digest=None)
    assert "it did not come from a registry" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_an_image_declared_by_digest_cannot_move(instance, project):
    serving(project, image_declared=f"registry.example/vllm@{OLD}")
    assert "named by digest" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_a_torn_record_is_a_reason_to_skip(instance, project):
    store.write_text(project.state_dir("tiny") / SERVING, '{"generation":')
    assert "serving.json is not a ServingRecord" in why_not(tick(instance, SENSOR, offering(NEW), project))


def test_both_sensors_are_stopped_until_somebody_starts_them(project):
    sensors = build(project).sensors or ()
    assert [sensor.default_status for sensor in sensors] == [dg.DefaultSensorStatus.STOPPED] * 2


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer("127.0.0.1", 0, tmp_path / "hub")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def project_on(root: Path, hub: HubServer) -> Project:
    """The project with `tiny` on the hub of this test, serving its first commit."""
    file = root / "data" / "deployments" / "tiny.yaml"
    file.write_text(file.read_text().replace("http://10.77.0.1:8090", hub.endpoint))
    project = Project.load(root)
    serving(project, commit=publish(hub.root, "lab/tiny", FILES))
    return project


def test_a_branch_that_moves_on_the_hub_is_deployed_at_the_commit_that_was_seen(instance, project_on, hub):
    assert "is the newest" in why_not(tick(instance, "model_revision_sensor", MODEL_REVISION, project_on))
    commit = publish(hub.root, "lab/tiny", {**FILES, "weights.bin": b"two"})
    (request,) = requests(tick(instance, "model_revision_sensor", MODEL_REVISION, project_on))
    assert request.run_key == f"tiny:{commit}:attempt1"
    stages = ("compatibility_report", "model_weights")
    assert request.run_config == {"ops": {f"tiny__{stage}": {"config": {"revision": commit}} for stage in stages}}


def test_a_hub_that_is_gone_is_a_reason_to_skip(instance, project_on, hub):
    hub.shutdown()
    hub.server_close()
    reason = why_not(tick(instance, "model_revision_sensor", MODEL_REVISION, project_on))
    assert "cannot be reached" in reason


def test_the_sensor_that_dagster_runs_gives_the_same_answer(instance, project_on, hub):
    commit = publish(hub.root, "lab/tiny", {**FILES, "weights.bin": b"two"})
    repository = build(project_on).get_repository_def()
    context = dg.build_sensor_context(instance=instance, repository_def=repository)
    result = repository.get_sensor_def("model_revision_sensor").evaluate_tick(context)
    assert [request.run_key for request in result.run_requests or ()] == [f"tiny:{commit}:attempt1"]
