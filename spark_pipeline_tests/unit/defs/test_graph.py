"""The whole graph under a snapshot: what the UI shows, and what sensors and schedules are keyed by, cannot change by
accident. `pytest --snapshot-update` after a change that is meant."""

from __future__ import annotations

import dagster as dg
import pytest
from syrupy.assertion import SnapshotAssertion

from spark_pipeline.defs.build import build
from spark_pipeline.spec.project import Project


@pytest.fixture
def defs(project: Project) -> dg.Definitions:
    return build(project)


def test_assets_with_their_groups_kinds_pools_and_dependencies(defs: dg.Definitions, snapshot: SnapshotAssertion):
    graph = defs.resolve_asset_graph()
    assets = {
        key.to_user_string(): {
            "group": graph.get(key).group_name,
            "kinds": sorted(graph.get(key).kinds),
            "pools": sorted(graph.get(key).pools or ()),
            "needs": sorted(parent.to_user_string() for parent in graph.get(key).parent_keys),
            "checks": sorted(check.name for check in graph.get(key).check_keys),
            "description": graph.get(key).description,
        }
        for key in sorted(graph.get_all_asset_keys())
    }
    assert assets == snapshot


def test_jobs_with_their_assets_and_tags(defs: dg.Definitions, snapshot: SnapshotAssertion):
    names = sorted(job.name for job in defs.jobs or ())
    jobs = {
        job.name: {
            "assets": sorted(key.to_user_string() for key in job.asset_layer.executable_asset_keys),
            "tags": dict(job.tags),
            "config": job.run_config,
        }
        for job in map(defs.resolve_job_def, names)
    }
    assert jobs == snapshot


def test_sensors_and_schedules_with_what_they_launch(defs: dg.Definitions, snapshot: SnapshotAssertion):
    repository = defs.get_repository_def()
    found = {
        **{
            sensor.name: {
                "status": sensor.default_status.value,
                "every_seconds": sensor.minimum_interval_seconds,
                "jobs": sorted(target.job_name for target in sensor.targets),
            }
            for sensor in repository.sensor_defs
        },
        **{
            schedule.name: {
                "status": schedule.default_status.value,
                "cron": schedule.cron_schedule,
                "timezone": schedule.execution_timezone,
                "job": schedule.job_name,
            }
            for schedule in repository.schedule_defs
        },
    }
    assert found == snapshot


def test_a_deployment_of_its_own_file_brings_its_own_assets_and_jobs(root, project):
    tiny = (root / "data" / "deployments" / "tiny.yaml").read_text()
    (root / "data" / "deployments" / "mine.yaml").write_text(
        tiny.replace("name: tiny", "name: mine").replace("port: 8000", "port: 8100")
    )
    defs = build(Project.load(root))
    before = build(project).resolve_asset_graph().get_all_asset_keys()
    new = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys() - before}
    stages = (
        "compatibility_report",
        "model_weights",
        "vllm_image",
        "ray_cluster",
        "serving_endpoint",
        "benchmark_results",
    )
    assert new == {f"mine/{stage}" for stage in stages}
    assert defs.resolve_job_def("deploy_mine").tags["spark_pipeline/deployment"] == "mine"


def test_a_project_without_deployments_still_loads(root):
    for file in (root / "data" / "deployments").glob("*.yaml"):
        file.unlink()
    dg.Definitions.validate_loadable(build(Project.load(root)))
