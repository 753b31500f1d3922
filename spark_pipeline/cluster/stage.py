"""ray_cluster: one container a rank on every node, joined and proven, waiting to be told what to serve."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from spark_pipeline.cluster import containers
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.cluster.join import Member, join
from spark_pipeline.cluster.plan import ClusterPlan
from spark_pipeline.cluster.plan import plan as plan_cluster
from spark_pipeline.cluster.preflight import preflight
from spark_pipeline.cluster.record import generation_behind, last_number, write_generation
from spark_pipeline.cluster.target import Target, build_target
from spark_pipeline.errors import StateError
from spark_pipeline.fleet import facts as node_facts
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.fleet.progress import human_seconds
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.record import read_record as read_image
from spark_pipeline.weights.record import read_record as read_weights


@dataclass(frozen=True)
class ClusterResult:
    """`members` is empty where nothing changed: they were proven when the generation started."""

    generation: Generation
    plan: ClusterPlan
    changed: bool
    members: tuple[Member, ...]
    seconds: float


def target(session: Session) -> Target:
    """What should run, from the declaration and what weights and image stages recorded (StateError without them)."""
    return build_target(session.deployment, session.fleet, session.nodes, read_weights(session), read_image(session))


def observe_facts(session: Session) -> Mapping[str, NodeFacts]:
    weights_dir = session.fleet.weights_dir
    return session.connection.each(
        [node.name for node in session.nodes], lambda host: node_facts.observe(host, weights_dir)
    )


def plan(session: Session) -> ClusterPlan:
    """What `ensure` would do now. Changes nothing."""
    running, others = containers.observe(session)
    wanted = target(session)
    facts = {} if running.complete(wanted) else observe_facts(session)
    last = last_number(session.state_dir)
    return plan_cluster(wanted, facts, running, others=others, last_number=last, run_id=session.run_id)


def ensure(session: Session) -> ClusterResult:
    """Bring the deployment's ranks up, joined, on every node; nothing to do if they are.

    An earlier generation is stopped only after everything that can fail early has been looked at. Whatever this
    call started is removed again if it fails or is cancelled.

    Raises:
        ClusterError, JoinError, MachineError, StateError.
    """
    started = time.monotonic()
    planned = plan(session)
    if planned.keep is not None:
        generation = generation_behind(session.state_dir, planned.keep[0])
        if generation is not None and "joined" in containers.marks(Docker(session.head), generation.head.container):
            session.progress(f"generation {generation.number} runs already: nothing to start")
            return ClusterResult(generation, planned, False, (), time.monotonic() - started)
        session.progress("the running containers never joined, or their record is lost: starting anew")
        containers.remove(session, planned.keep)
        planned = plan(session)
    preflight(session, planned)
    if planned.remove:
        session.progress(f"stopping {len(planned.remove)} container(s) of an earlier generation")
        containers.remove(session, planned.remove)
        # Only now the memory is what the new generation will find.
        planned = plan(session)
    if planned.generation is None:
        raise StateError("another run started this deployment meanwhile", remedy="wait for it, then run again")
    members = _start(session, planned.generation)
    seconds = time.monotonic() - started
    session.progress(f"{len(members)} ranks joined in {human_seconds(seconds)}")
    return ClusterResult(planned.generation, planned, True, members, seconds)


def _start(session: Session, generation: Generation) -> tuple[Member, ...]:
    try:
        # Written first: should this process die now, the next run knows how to undo what it started.
        write_generation(session.state_dir, generation)
        session.progress(f"starting generation {generation.number}: {len(generation.ranks)} containers")
        containers.start(session, generation)
        members = join(session, generation)
        containers.mark(Docker(session.head), generation.head.container, "joined")
    except BaseException:
        session.progress(f"removing what generation {generation.number} started")
        containers.remove_generation(session, generation)
        raise
    return members
