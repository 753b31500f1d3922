"""`policy.redeploy_cron`: deploy again what is declared, with what hub and registry offer at that hour."""

from __future__ import annotations

import dagster as dg

from spark_pipeline.defs.deployed import find_deployed
from spark_pipeline.defs.jobs import deploy_job_name
from spark_pipeline.defs.upstream import VLLM_IMAGE, ask_all
from spark_pipeline.errors import StateError
from spark_pipeline.spec.deployment import Deployment
from spark_pipeline.spec.project import Project


def redeploy_schedule(project: Project, deployment: Deployment) -> dg.ScheduleDefinition:
    """Stopped until somebody starts it in the UI, as the sensors are."""

    @dg.schedule(
        name=f"redeploy_{deployment.name}",
        job_name=deploy_job_name(deployment.name),
        cron_schedule=str(deployment.policy.redeploy_cron),
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Deploys again what is declared: a newer image or revision is taken, nothing else is touched.",
    )
    def schedule() -> dg.RunRequest:
        return dg.RunRequest(run_config=redeploy_config(project, deployment))

    return schedule


def redeploy_config(project: Project, deployment: Deployment) -> dict[str, object]:
    """What the run is told beyond the declaration: the digest that the registry shows now behind the image that serves.

    The branch needs no word: weights resolve it in every run. An image that the head already holds under its tag is
    taken as it is, so a newer one must be asked for. Where no registry can be asked, the run goes on without.
    """
    try:
        deployed = find_deployed(project, deployment.name)
    except StateError:
        return {}
    if isinstance(deployed, str) or VLLM_IMAGE.pinned(deployment, deployed) or not VLLM_IMAGE.good(deployed):
        return {}
    digest = ask_all(VLLM_IMAGE, [(deployment, deployed)])[deployment.name].value
    if not digest:
        return {}
    return VLLM_IMAGE.run_config(deployed, digest)
