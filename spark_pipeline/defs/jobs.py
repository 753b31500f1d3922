"""What a person, a schedule or a sensor can ask for: deploy, or only measure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg

from spark_pipeline.defs.config import BenchmarkConfig
from spark_pipeline.spec.deployment import Deployment

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

DASHBOARD_KEY = dg.AssetKey("benchmark_dashboard")
DEPLOYMENT_TAG = "spark_pipeline/deployment"
# dagster.yaml lets one run a fleet start at a time; the others wait in the queue and not at the lease.
FLEET_TAG = "spark_pipeline/fleet"

# A run that nothing ends would hold the fleet for ever. 123B parameters at 20 MB/s are under two hours; the engine's
# own start has its own limit in the declaration.
_TRANSFER_LIMIT = timedelta(hours=6)
_MEASURE_LIMIT = timedelta(hours=3)


def deploy_job_name(deployment: str) -> str:
    return f"deploy_{deployment}"


def asset_key(deployment: str, stage: str) -> dg.AssetKey:
    return dg.AssetKey([deployment, stage])


def op_name(deployment: str, stage: str) -> str:
    """The key under which a run's configuration addresses an asset."""
    return f"{deployment}__{stage}"


def deploy_job(deployment: Deployment) -> UnresolvedAssetJobDefinition:
    """The whole chain, then the dashboard. With nothing changed it copies, starts and measures nothing."""
    limit = _TRANSFER_LIMIT + _MEASURE_LIMIT + timedelta(seconds=deployment.serve.start_timeout_seconds)
    return dg.define_asset_job(
        deploy_job_name(deployment.name),
        selection=dg.AssetSelection.groups(deployment.name) | dg.AssetSelection.assets(DASHBOARD_KEY),
        description=f"{deployment.model.repo} to an answering endpoint on fleet {deployment.fleet}, then measured.",
        tags=_tags(deployment, limit),
    )


def measure_job(deployment: Deployment) -> UnresolvedAssetJobDefinition:
    """Measures what is serving, even if it was measured before; changes nothing else."""
    benchmark = asset_key(deployment.name, "benchmark_results")
    return dg.define_asset_job(
        f"measure_{deployment.name}",
        selection=dg.AssetSelection.assets(benchmark, DASHBOARD_KEY),
        description="Measures the endpoint again and redraws the dashboard.",
        config=dg.RunConfig(ops={op_name(deployment.name, "benchmark_results"): BenchmarkConfig(force=True)}),
        tags=_tags(deployment, _MEASURE_LIMIT),
    )


def _tags(deployment: Deployment, limit: timedelta) -> dict[str, str]:
    return {
        DEPLOYMENT_TAG: deployment.name,
        FLEET_TAG: deployment.fleet,
        "dagster/max_runtime": str(int(limit.total_seconds())),
    }
