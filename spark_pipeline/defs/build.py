"""All definitions of a project's declarations, in one list that can be read from top to bottom."""

from __future__ import annotations

import dagster as dg

from spark_pipeline.defs.assets import benchmark_dashboard, deployment_assets
from spark_pipeline.defs.executor import tidy_executor
from spark_pipeline.defs.jobs import deploy_job, measure_job
from spark_pipeline.defs.schedules import redeploy_schedule
from spark_pipeline.defs.sensors import model_revision_sensor, vllm_image_sensor
from spark_pipeline.spec.project import Project


def build(project: Project) -> dg.Definitions:
    """Six assets and two jobs a deployment, one dashboard, two sensors, and the schedules that were asked for."""
    deployments = [project.deployments[name] for name in sorted(project.deployments)]
    deploy = [deploy_job(deployment) for deployment in deployments]
    return dg.Definitions(
        assets=[
            *(asset for deployment in deployments for asset in deployment_assets(project, deployment)),
            benchmark_dashboard(project),
        ],
        jobs=[*deploy, *(measure_job(deployment) for deployment in deployments)],
        schedules=[
            redeploy_schedule(project, deployment) for deployment in deployments if deployment.policy.redeploy_cron
        ],
        sensors=[vllm_image_sensor(project, deploy), model_revision_sensor(project, deploy)] if deploy else [],
        executor=tidy_executor,
    )
