"""The checks of model_weights as Dagster keeps them, red ones above all. The fleet is this machine, the hub is real."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecordStatus,
    AssetCheckExecutionResolvedStatus,
)

from spark_pipeline.defs.assets import deployment_assets
from spark_pipeline.defs.jobs import asset_key
from spark_pipeline.errors import (
    HubError,
    NoRoomError,
    RevisionNotFoundError,
    SparkPipelineError,
    UnreachableError,
    VerificationError,
    WeightsError,
)
from spark_pipeline.lab.hub_faults import Fault, write_faults
from spark_pipeline.lab.hub_server import HubServer
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import stage
from spark_pipeline.weights.checks import COMPLETE, PROVEN, ROOM
from spark_pipeline_tests.unit.weights.conftest import LoopbackHub, local_project

GREEN = AssetCheckExecutionResolvedStatus.SUCCEEDED
RED = AssetCheckExecutionResolvedStatus.FAILED
UNKNOWN = AssetCheckExecutionResolvedStatus.EXECUTION_FAILED  # the step ended before it was asked
REPO = "lab/weights"
MODEL_WEIGHTS = asset_key("one", "model_weights")
FILES = {"config.json": b"{}", "model-1.bin": os.urandom(30_000), "model-2.bin": os.urandom(20_000)}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer("127.0.0.1", 0, tmp_path / "hub")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    publish(server.root, REPO, FILES)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def project(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Deployment `one` on this machine alone; the lease lies in a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return local_project(tmp_path, LoopbackHub(hub, repo=REPO))


def materialize(project: Project, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    assets = deployment_assets(project, project.deployment("one"))
    return dg.materialize(assets, selection=[MODEL_WEIGHTS], instance=instance, raise_on_error=False)


def stored(instance: dg.DagsterInstance) -> dict[str, AssetCheckExecutionResolvedStatus]:
    """Check -> how its last execution stands, which is what the UI shows."""
    keys = [dg.AssetCheckKey(MODEL_WEIGHTS, name) for name in (COMPLETE, PROVEN, ROOM)]
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    context = LoadingContextForTest(instance)
    return {key.name: asyncio.run(record.resolve_status(context)) for key, record in found.items()}


def evaluation(instance: dg.DagsterInstance, name: str) -> dg.AssetCheckEvaluation:
    """The red one."""
    key = dg.AssetCheckKey(MODEL_WEIGHTS, name)
    (record,) = instance.event_log_storage.get_asset_check_execution_history(
        key, limit=9, status={AssetCheckExecutionRecordStatus.FAILED}
    )
    assert record.event
    assert record.event.dagster_event
    return record.event.dagster_event.asset_check_evaluation_data


def test_bytes_that_stay_wrong_turn_the_hashes_red_and_the_run_after_that_turns_them_green(
    project: Project, hub: HubServer, instance: dg.DagsterInstance
) -> None:
    write_faults(hub.root, [Fault(kind="flip", path="model-2.bin")])

    failed = materialize(project, instance)

    assert not failed.success
    assert not failed.get_asset_materialization_events()
    assert stored(instance) == {
        COMPLETE: UNKNOWN,
        PROVEN: RED,
        ROOM: UNKNOWN,
    }
    shown = evaluation(instance, PROVEN)
    assert not shown.passed
    assert shown.severity is dg.AssetCheckSeverity.ERROR
    assert "model-2.bin came wrong twice" in str(shown.description)
    assert shown.metadata["node"].value == "head"
    assert "expected sha256" in str(shown.metadata["observed"].value)
    assert ".spark_pipeline/bad" in str(shown.metadata["remedy"].value)

    write_faults(hub.root, [])
    assert materialize(project, instance).success
    assert set(stored(instance).values()) == {GREEN}


def test_a_file_that_the_hub_does_not_give_turns_the_manifest_red(
    project: Project, hub: HubServer, instance: dg.DagsterInstance
) -> None:
    write_faults(hub.root, [Fault(kind="gated", path="model-2.bin")])

    assert not materialize(project, instance).success

    assert stored(instance)[COMPLETE] is RED
    assert "refuses model-2.bin" in str(evaluation(instance, COMPLETE).description)


@pytest.mark.parametrize(
    ("error", "red"),
    [
        (NoRoomError("does not fit", node="peer", observed="missing 1 GB", remedy="prune"), {ROOM}),
        (NoRoomError("does not fit", observed="head: missing 1 GB\npeer: missing 1 GB"), {ROOM}),
        (VerificationError("files arrive wrong", node="peer", observed="model-1.bin"), {PROVEN}),
        (WeightsError("cannot be written", node="peer", observed="No space left on device"), {COMPLETE}),
        (HubError("the hub cannot be reached"), set()),
        (RevisionNotFoundError("no revision 'nope'"), set()),
        (UnreachableError("no route", node="peer"), set()),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SparkPipelineError) else "",
)
def test_only_the_check_that_is_known_not_to_hold_is_red_and_the_run_fails_as_before(
    project: Project,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    error: SparkPipelineError,
    red: set[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(stage, "ensure", fail)

    result = materialize(project, instance)

    (event,) = result.get_step_failure_events()
    assert event.step_failure_data.user_failure_data
    assert event.step_failure_data.user_failure_data.description == str(error)
    assert stored(instance) == {name: RED if name in red else UNKNOWN for name in (COMPLETE, PROVEN, ROOM)}
    for name in red:
        shown = evaluation(instance, name).metadata
        parts = {"error": type(error).__name__, "node": error.node, "remedy": error.remedy}
        assert {part: shown[part].value for part in parts if part in shown} == {
            part: value for part, value in parts.items() if value
        }
        assert error.observed in str(shown["observed"].value)
