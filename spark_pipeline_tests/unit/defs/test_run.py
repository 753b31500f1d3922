"""What surrounds every stage: the lease, errors as failures, cancelling. The fleet is this machine, without ssh."""

from __future__ import annotations

import socket
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from spark_pipeline.defs.assets import deployment_assets
from spark_pipeline.defs.run import changing_fleet, failure
from spark_pipeline.errors import ImageNotFoundError, WeightsError
from spark_pipeline.fleet.lease import hold
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.spec.project import Project

LOCAL_FLEET = """\
name: here
accelerator: none
weights_dir: {root}/models
nodes:
  - {{name: head, local: true, fabric: 127.0.0.1}}
"""
UNREACHABLE_FLEET = """\
name: here
accelerator: none
weights_dir: /home/nobody/models
nodes:
  - {{name: head, ssh: {{host: 127.0.0.1, user: nobody, port: {port}}}, fabric: 127.0.0.1}}
"""


@pytest.fixture
def project(root: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Deployment `tiny` on this machine alone; the lease lies in a home of its own."""
    monkeypatch.setenv("HOME", str(root))
    return on_fleet(root, LOCAL_FLEET.format(root=root))


def on_fleet(root: Path, fleet: str) -> Project:
    (root / "data" / "fleets" / "here.yaml").write_text(fleet)
    file = root / "data" / "deployments" / "tiny.yaml"
    text = file.read_text().replace("fleet: lab", "fleet: here").replace("tensor: 2", "tensor: 1")
    file.write_text(text)
    return Project.load(root)


@pytest.fixture
def context(instance: dg.DagsterInstance) -> dg.AssetExecutionContext:
    return dg.build_asset_context(instance=instance)


def somebody_holds(project: Project):
    return hold(LocalHost("head"), fleet="here", owner="anna@laptop", run_id="other", progress=print)


def test_the_fleet_is_held_while_a_stage_works_and_free_afterwards(context, project):
    with changing_fleet(context, project, "tiny") as session:
        assert session.run_id == context.op_execution_context.run_id
        with pytest.raises(Exception, match="being changed by somebody else"), somebody_holds(project):
            pass
    with somebody_holds(project):
        pass


def test_two_steps_of_one_run_may_work_side_by_side(context, project):
    with changing_fleet(context, project, "tiny"), changing_fleet(context, project, "tiny") as session:
        assert session.deployment.name == "tiny"


def test_a_fleet_that_somebody_else_changes_is_a_failure_that_names_him(context, project):
    with (
        somebody_holds(project),
        pytest.raises(dg.Failure, match="anna@laptop") as caught,
        changing_fleet(context, project, "tiny"),
    ):
        pytest.fail("must not begin")
    assert caught.value.metadata["error"].value == "LeaseHeldError"


def test_a_cancelled_step_passes_through_and_gives_the_fleet_back(context, project):
    with pytest.raises(DagsterExecutionInterruptedError), changing_fleet(context, project, "tiny"):
        raise DagsterExecutionInterruptedError
    with somebody_holds(project):
        pass


def test_a_stages_error_becomes_a_failure_with_node_observation_and_remedy(context, project):
    with pytest.raises(dg.Failure) as caught, changing_fleet(context, project, "tiny"):
        raise WeightsError("does not fit", node="head", observed="1 GB free", remedy="remove something")
    shown = caught.value
    assert shown.description == "[head] does not fit\n  observed: 1 GB free\n  remedy:   remove something"
    assert {key: value.value for key, value in shown.metadata.items()} == {
        "error": "WeightsError",
        "node": "head",
        "observed": "```\n1 GB free\n```",
        "remedy": "remove something",
    }
    assert not shown.allow_retries


def test_parts_that_an_error_lacks_are_left_out():
    assert set(failure(ImageNotFoundError("nowhere")).metadata) == {"error"}


def test_an_error_of_the_program_itself_stays_what_it_is(context, project):
    with pytest.raises(ZeroDivisionError), changing_fleet(context, project, "tiny"):
        _ = 1 / 0


def test_a_run_on_an_unreachable_fleet_fails_with_the_reason_and_starts_nothing(root, instance):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    project = on_fleet(root, UNREACHABLE_FLEET.format(port=port))
    assets = deployment_assets(project, project.deployment("tiny"))
    result = dg.materialize(assets, instance=instance, raise_on_error=False)
    assert not result.success
    failed = {event.step_key: event.step_failure_data for event in result.get_step_failure_events()}
    assert set(failed) == {"tiny__compatibility_report"}
    user_failure = failed["tiny__compatibility_report"].user_failure_data
    assert user_failure is not None
    assert "[head]" in str(user_failure.description)
    assert f"127.0.0.1:{port}" in str(user_failure.description)
    assert not result.get_asset_materialization_events()
