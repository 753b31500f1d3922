"""serving_endpoint: the declared model answers at the declared port, proven by one real completion."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from spark_pipeline.cluster import containers
from spark_pipeline.cluster import stage as cluster
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.errors import EngineExitedError, ReadinessTimeoutError
from spark_pipeline.fleet.cancel import to_the_end
from spark_pipeline.fleet.docker import Container, Docker
from spark_pipeline.fleet.plan import Command, StagePlan
from spark_pipeline.fleet.progress import human_seconds
from spark_pipeline.fleet.session import Session
from spark_pipeline.serving import api, readiness
from spark_pipeline.serving.record import ServingRecord, find_record, forget, write_record


@dataclass(frozen=True)
class ServingResult:
    """`completion` is the real answer that proves the endpoint."""

    record: ServingRecord
    changed: bool
    completion: api.Completion
    seconds: float


def plan(session: Session) -> StagePlan:
    """What `ensure` would do now. Changes nothing."""
    return describe(cluster.plan(session).generation)


def describe(generation: Generation | None) -> StagePlan:
    """Pure: the engine's commands for a generation that is to start; none where the running one is kept."""
    if generation is None:
        return StagePlan("serving_endpoint", False, ("the running generation is kept; it is asked for a completion",))
    commands = tuple(Command(rank.node, rank.serve) for rank in generation.ranks if rank.serve is not None)
    ready = f"ready when /v1/models lists {generation.served_name} and one completion holds tokens"
    return StagePlan("serving_endpoint", True, (f"inside each rank's container; {ready}",), commands)


def ensure(session: Session) -> ServingResult:
    """Serve, and prove it; nothing to start if it serves already.

    What this call started is removed if it fails or is cancelled: a half-started engine must not hold the
    accelerators. The logs of every rank are kept under data/state/<deployment>/logs/.

    Raises:
        ServingError, ClusterError, MachineError, StateError.
    """
    started = time.monotonic()
    generation = cluster.ensure(session).generation
    docker = Docker(session.connection.host(generation.head.node))
    handed_over = "serve.sh" in containers.marks(docker, generation.head.container)
    if handed_over and (known := _still_good(session, generation)):
        completion = api.complete(docker.host, generation.port, known.model_id)
        session.progress(f"serves already at {known.url}: nothing to start")
        return ServingResult(known, False, completion, time.monotonic() - started)
    try:
        if not handed_over:
            session.progress("telling every rank what to serve")
            containers.hand_over(session, generation)
        ready = readiness.wait_until_ready(session, generation)
        completion = api.complete(docker.host, generation.port, ready.model_id)
        # An engine may die of its first request, and end with status 0.
        readiness.check_unchanged(session, generation, ready.containers)
        record = _record(session, generation, ready)
    except BaseException as error:
        # An engine that somebody else told to serve goes only if it is proven to be of no use: a broken connection
        # or a cancelled look must not take a healthy endpoint down.
        if not handed_over or isinstance(error, EngineExitedError | ReadinessTimeoutError):
            to_the_end(partial(_take_back, session, generation, error))
        raise
    write_record(session, record)
    session.progress(f"serves {record.model_id} at {record.url}, ready after {human_seconds(record.ready_seconds)}")
    return ServingResult(record, True, completion, time.monotonic() - started)


def _take_back(session: Session, generation: Generation, cause: BaseException) -> None:
    session.progress(f"removing generation {generation.number}: it did not become ready")
    forget(session)
    containers.clean_up(session, generation, cause)


def stop(session: Session) -> tuple[Container, ...]:
    """Remove every container of the deployment on every node; returns what was removed, seen gone."""
    running, _ = containers.observe(session)
    containers.remove(session, running.containers)
    forget(session)
    return running.containers


def _still_good(session: Session, generation: Generation) -> ServingRecord | None:
    """The record of exactly these containers, if the API lists the model now."""
    record = find_record(session.project, session.deployment.name)
    if record is None or record.generation != generation:
        return None
    if record.container_ids != _ids(generation, readiness.look(session, generation)):
        return None
    ids = api.model_ids(session.connection.host(generation.head.node), generation.port)
    if ids is None:
        return None
    readiness.check_model_ids(generation, ids)
    return record


def _record(session: Session, generation: Generation, ready: readiness.Ready) -> ServingRecord:
    return ServingRecord(
        generation=generation,
        url=f"http://{_outside_address(session)}:{generation.port}",
        model_id=ready.model_id,
        ready_seconds=round(ready.seconds, 2),
        container_ids=_ids(generation, ready.containers),
        run_id=session.run_id,
    )


def _ids(generation: Generation, found: Mapping[str, Container | None]) -> tuple[str, ...]:
    by_rank = [found[rank.node] for rank in generation.ranks]
    return tuple(container.container_id if container else "" for container in by_rank)


def _outside_address(session: Session) -> str:
    head = session.fleet.head
    return head.ssh.host if head.ssh else "127.0.0.1"
