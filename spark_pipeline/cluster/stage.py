"""ray_cluster: one container a rank on every node, joined and proven, waiting to be told what to serve."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from spark_pipeline.cluster import containers
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.cluster.join import Member, join
from spark_pipeline.cluster.plan import ClusterPlan
from spark_pipeline.cluster.plan import plan as plan_cluster
from spark_pipeline.cluster.preflight import need_free_ports, preflight
from spark_pipeline.cluster.record import generation_behind, last_number, write_generation
from spark_pipeline.cluster.target import Target, build_target
from spark_pipeline.errors import StateError
from spark_pipeline.fleet import facts as node_facts
from spark_pipeline.fleet.cancel import to_the_end
from spark_pipeline.fleet.docker import Container, Docker
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.fleet.progress import human_seconds
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.choice import read_choice
from spark_pipeline.image.record import read_record as read_image
from spark_pipeline.spec.fleet import Accelerator
from spark_pipeline.weights.record import read_record as read_weights

MEMORY_PATIENCE_SECONDS = 90.0
STEP_BYTES = 2**30


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
    weights, choice = read_weights(session), read_choice(session)
    if weights.commit != choice.commit:
        raise StateError(
            "the image was decided on for another commit of the model than the one that is here",
            observed=f"compatibility_report: {choice.commit}, model_weights: {weights.commit}",
            remedy=f"materialize {session.deployment.name}/compatibility_report and {session.deployment.name}/"
            "model_weights in one run",
        )
    return build_target(session.deployment, session.fleet, session.nodes, weights, read_image(session))


def observe_facts(session: Session) -> Mapping[str, NodeFacts]:
    weights_dir = session.fleet.weights_dir
    return session.connection.each(
        [node.name for node in session.nodes], lambda host: node_facts.observe(host, weights_dir)
    )


def plan(session: Session) -> ClusterPlan:
    """What `ensure` would do now. Changes nothing."""
    running, others = containers.observe(session)
    wanted = target(session)
    joined = _joined(session, running.complete(wanted))
    return plan_cluster(
        wanted,
        {} if joined else observe_facts(session),
        running,
        joined=joined,
        others=others,
        last_number=last_number(session.state_dir),
        run_id=session.run_id,
    )


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
        session.progress(f"generation {planned.keep.number} runs already: nothing to start")
        return ClusterResult(planned.keep, planned, False, (), time.monotonic() - started)
    preflight(session, planned)
    if planned.remove:
        session.progress(f"{planned.reasons[0]}: stopping {', '.join(item.name for item in planned.remove)}")
        containers.remove(session, planned.remove)
        _wait_for_memory(session)
        # Only now memory and ports are what the new generation will find.
        planned = plan(session)
        need_free_ports(session, planned)
    if planned.generation is None:
        raise StateError("another run started this deployment meanwhile", remedy="wait for it, then run again")
    members = _start(session, planned.generation)
    seconds = time.monotonic() - started
    session.progress(f"{len(members)} ranks joined in {human_seconds(seconds)}")
    return ClusterResult(planned.generation, planned, True, members, seconds)


def _joined(session: Session, complete: tuple[Container, ...] | None) -> Generation | None:
    """The generation behind the containers, if its record is ours and its ranks did join."""
    if complete is None:
        return None
    generation = generation_behind(session.state_dir, complete[0])
    if generation is None or "joined" not in containers.marks(Docker(session.head), generation.head.container):
        return None
    return generation


def _wait_for_memory(session: Session) -> None:
    """Unified memory comes back some seconds after its process is gone: wait until it stops growing."""
    if session.fleet.accelerator is Accelerator.NONE:
        return
    deadline = time.monotonic() + MEMORY_PATIENCE_SECONDS
    before = -STEP_BYTES
    while time.monotonic() < deadline:
        now = min(facts.memory_available_bytes for facts in observe_facts(session).values())
        if now - before < STEP_BYTES:
            return
        before = now
        time.sleep(3)


def _start(session: Session, generation: Generation) -> tuple[Member, ...]:
    try:
        # Written first: should this process die now, the next run knows how to undo what it started.
        write_generation(session.state_dir, generation)
        session.progress(f"starting generation {generation.number}: {len(generation.ranks)} containers")
        containers.start(session, generation)
        members = join(session, generation)
        containers.mark(Docker(session.head), generation.head.container, "joined")
    except BaseException as error:
        to_the_end(partial(_take_back, session, generation, error))
        raise
    return members


def _take_back(session: Session, generation: Generation, cause: BaseException) -> None:
    session.progress(f"removing what generation {generation.number} started")
    containers.clean_up(session, generation, cause)
