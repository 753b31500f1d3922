"""Redeploy when hub or registry offer something else than what serves.

A tick compares; it never deploys, and never asks a machine of the fleet. There is no cursor: what serves is read from
the record of the last deployment, and what was tried from the tags of earlier runs, so nothing is lost when a sensor's
state is.

    never served, or stopped on purpose ─> skip (deployed.py says how a stop is told from a failure)
    a run of the deployment goes on ─────> skip
    offered == serving ──────────────────> skip
    a deployment failed, and
    offered == good last == failed ──────> skip: it failed for something else; any other value may be what mends it
    three runs in a row for this value ──> skip, until the value moves or a person deploys
    otherwise ───────────────────────────> one run of deploy_<deployment>, told exactly the value that was seen

A run key that was used once is never taken again by Dagster, even if its run failed; so it ends with an attempt number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from spark_pipeline.defs.deployed import Deployed, find_deployed
from spark_pipeline.defs.jobs import DEPLOYMENT_TAG, deploy_job_name
from spark_pipeline.defs.upstream import MODEL_REVISION, VLLM_IMAGE, Upstream, ask_all
from spark_pipeline.errors import StateError
from spark_pipeline.spec.deployment import Deployment
from spark_pipeline.spec.project import Project

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

MAX_ATTEMPTS = 3
ASKED_BY_TAG = "spark_pipeline/asked_by"
VALUE_TAG = "spark_pipeline/value"
ATTEMPT_TAG = "spark_pipeline/attempt"
_UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
    dg.DagsterRunStatus.MANAGED,
]


def model_revision_sensor(project: Project, jobs: Sequence[UnresolvedAssetJobDefinition]) -> dg.SensorDefinition:
    """The hub's commit behind each declared branch or tag."""
    return _sensor("model_revision_sensor", MODEL_REVISION, project, jobs, every_seconds=60)


def vllm_image_sensor(project: Project, jobs: Sequence[UnresolvedAssetJobDefinition]) -> dg.SensorDefinition:
    """The registry's digest behind the image that serves. Asked with HEAD, which counts against no pull limit."""
    return _sensor("vllm_image_sensor", VLLM_IMAGE, project, jobs, every_seconds=300)


def _sensor(
    name: str, upstream: Upstream, project: Project, jobs: Sequence[UnresolvedAssetJobDefinition], *, every_seconds: int
) -> dg.SensorDefinition:
    @dg.sensor(
        name=name,
        jobs=jobs,
        minimum_interval_seconds=every_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Deploys again when the {upstream.what} on offer is another than the one that serves.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return tick(context.instance, name, upstream, project)

    return sensor


def tick(instance: dg.DagsterInstance, sensor: str, upstream: Upstream, project: Project) -> dg.SensorResult:
    """One look at every deployment; requests for those that moved, or the reasons why there is none."""
    skipped: list[str] = []
    watched: list[tuple[Deployment, Deployed]] = []
    for deployment in project.deployments.values():
        found = _worth_asking(instance, upstream, project, deployment)
        if isinstance(found, str):
            skipped.append(f"{deployment.name}: {found}")
        else:
            watched.append((deployment, found))
    answers = ask_all(upstream, watched)
    requests: list[dg.RunRequest] = []
    for deployment, deployed in watched:
        answer = answers[deployment.name]
        if answer.problem:
            skipped.append(f"{deployment.name}: {answer.problem}")
        elif upstream.is_newest(deployed, answer.value):
            stands = "was good last, and the deployment failed for something else" if deployed.failed else "serves"
            skipped.append(f"{deployment.name}: {upstream.what} {_short(answer.value)} {stands} and is the newest")
        else:
            request = _request(instance, sensor, upstream, deployment.name, deployed, answer.value)
            if isinstance(request, str):
                skipped.append(f"{deployment.name}: {request}")
            else:
                requests.append(request)
    return dg.SensorResult(run_requests=requests) if requests else dg.SensorResult(skip_reason="\n".join(skipped))


def _worth_asking(
    instance: dg.DagsterInstance, upstream: Upstream, project: Project, deployment: Deployment
) -> Deployed | str:
    """What to compare, or why not."""
    try:
        deployed = find_deployed(project, deployment.name)
    except StateError as error:
        return str(error)
    if isinstance(deployed, str):
        return deployed
    if pinned := upstream.pinned(deployment, deployed):
        return pinned
    if not upstream.good(deployed):
        return f"what serves has no {upstream.what} to compare: it did not come from a registry"
    if run := _run_in_flight(instance, deployment.name):
        return f"run {run.run_id[:8]} of it is {run.status.value}; if its process is dead, mark it canceled in the UI"
    return deployed


def _run_in_flight(instance: dg.DagsterInstance, deployment: str) -> dg.DagsterRun | None:
    """A run that deploys it, whoever asked: a job, the UI's Materialize, or the command line."""
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)):
        selected = run.asset_selection or ()
        if run.tags.get(DEPLOYMENT_TAG) == deployment or any(key.path[0] == deployment for key in selected):
            return run
    return None


def _request(
    instance: dg.DagsterInstance, sensor: str, upstream: Upstream, deployment: str, deployed: Deployed, value: str
) -> dg.RunRequest | str:
    """The request, or why it was made often enough."""
    asked = instance.get_runs(dg.RunsFilter(tags={DEPLOYMENT_TAG: deployment, ASKED_BY_TAG: sensor}), limit=50)
    in_a_row = next((n for n, run in enumerate(asked) if run.tags.get(VALUE_TAG) != value), len(asked))
    if in_a_row >= MAX_ATTEMPTS:
        return (
            f"{upstream.what} {_short(value)} was asked for {in_a_row} times and does not serve, last run "
            f"{asked[0].run_id[:8]} {asked[0].status.value}; launch {deploy_job_name(deployment)} by hand"
        )
    before = [int(run.tags.get(ATTEMPT_TAG, 0)) for run in asked if run.tags.get(VALUE_TAG) == value]
    attempt = max(before, default=0) + 1
    return dg.RunRequest(
        run_key=f"{deployment}:{value}:attempt{attempt}",
        job_name=deploy_job_name(deployment),
        run_config=upstream.run_config(deployed, value),
        tags={
            DEPLOYMENT_TAG: deployment,
            ASKED_BY_TAG: sensor,
            VALUE_TAG: value,
            ATTEMPT_TAG: str(attempt),
        },
    )


def _short(value: str) -> str:
    return value.removeprefix("sha256:")[:12]
