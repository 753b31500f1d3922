"""What every asset does around its stage: connect, hold the fleet's lease, and turn our errors into failures."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import dagster as dg

from spark_pipeline.defs.metadata import of_error
from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.fleet.lease import hold
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.spec.project import Project


@contextmanager
def changing_fleet(context: dg.AssetExecutionContext, project: Project, deployment: str) -> Iterator[Session]:
    """A session on the deployment's machines that nobody else changes meanwhile.

    The lease carries Dagster's run id, so that two steps of one run share it. Cancelling raises
    DagsterExecutionInterruptedError, which no code of ours catches: it passes through, and lease and
    connections are given back on its way.

    Raises:
        dagster.Failure: for every SparkPipelineError; never retried, as the same call gives the same answer.
    """
    _warn_of_lost_history(context)
    run_id, say = context.op_execution_context.run_id, context.log.info
    owner = f"{getpass.getuser()}@{socket.gethostname()}, Dagster run {run_id[:8]}"
    try:
        with (
            open_session(project, deployment, progress=say, run_id=run_id) as session,
            hold(session.head, fleet=session.fleet.name, owner=owner, run_id=run_id, progress=say) as lease,
        ):
            yield replace(session, guard=lease.check)
            lease.check()  # lost meanwhile: what this step saw last may not be true any more
    except SparkPipelineError as error:
        raise failure(error) from error


def failure(error: SparkPipelineError) -> dg.Failure:
    """Our error as Dagster shows it: the whole text as description, its parts as metadata."""
    return dg.Failure(
        description=str(error),
        metadata=of_error(error),
        allow_retries=False,
    )


def _warn_of_lost_history(context: dg.AssetExecutionContext) -> None:
    """Without DAGSTER_HOME Dagster keeps its events in a folder that it deletes at exit, and pools do not hold."""
    if ".tmp_dagster_home" in context.instance.root_directory:
        context.log.warning(
            "DAGSTER_HOME is not set: Dagster will not remember this run. Set it to the project's root: "
            'export DAGSTER_HOME="$PWD"'
        )
