"""The containers of a deployment on its nodes: seen, started, marked, removed. All nodes at once."""

from __future__ import annotations

from collections.abc import Iterable

from spark_pipeline.cluster.commands import MARKS
from spark_pipeline.cluster.generation import LABEL, Generation, Rank
from spark_pipeline.cluster.plan import Running
from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.fleet.docker import Container, Docker
from spark_pipeline.fleet.failures import failure
from spark_pipeline.fleet.host import Host, shell_text
from spark_pipeline.fleet.session import Session

EXEC_TIMEOUT_SECONDS = 30.0
LOG_LINES = 4000


def observe(session: Session) -> tuple[Running, tuple[Container, ...]]:
    """This deployment's containers on every node of the fleet, and the other deployments' running ones on its nodes."""
    every = session.connection.each(
        [node.name for node in session.fleet.nodes], lambda host: Docker(host).containers({LABEL + "deployment": ""})
    )
    own: list[Container] = []
    others: list[Container] = []
    used = {node.name for node in session.nodes}
    for container in (item for items in every.values() for item in items):
        if container.labels.get(LABEL + "deployment") == session.deployment.name:
            own.append(container)
        elif container.state == "running" and container.node in used:
            others.append(container)
    return Running(tuple(own)), tuple(others)


def start(session: Session, generation: Generation) -> None:
    """`docker run` of every rank, all nodes at once."""
    session.guard()
    by_node = {rank.node: rank for rank in generation.ranks}
    session.connection.each(list(by_node), lambda host: Docker(host).start(by_node[host.name].run))


def remove(session: Session, containers: Iterable[Container]) -> None:
    """Remove them and see them gone, all nodes at once."""
    session.guard()
    names: dict[str, list[str]] = {}
    for container in containers:
        names.setdefault(container.node, []).append(container.name)
    session.connection.each(list(names), lambda host: Docker(host).remove(names[host.name]))


def remove_generation(session: Session, generation: Generation) -> None:
    """Remove what was started of a generation, however far it came; its logs are kept first."""
    by_node = {rank.node: rank for rank in generation.ranks}

    def clear(host: Host) -> None:
        rank = by_node[host.name]
        docker = Docker(host)
        if docker.container(rank.container) is None:
            return
        try:
            keep_log(session, generation, rank, docker)
        except SparkPipelineError as error:
            session.progress(f"log of {rank.container} could not be kept: {error.what}")
        docker.remove([rank.container])

    session.connection.each(list(by_node), clear)


def clean_up(session: Session, generation: Generation, cause: BaseException) -> None:
    """Remove what was started of a generation that failed; what goes wrong meanwhile never hides the cause."""
    try:
        remove_generation(session, generation)
    except SparkPipelineError as error:
        cause.add_note(f"and it could not be removed everywhere: {error}")


def keep_log(session: Session, generation: Generation, rank: Rank, docker: Docker) -> str:
    """Copy the end of a rank's log to data/state/<deployment>/logs/ and return it; a removed container has none."""
    text = docker.logs(rank.container, LOG_LINES)
    file = session.state_dir / "logs" / f"g{generation.number}-r{rank.rank}-{rank.node}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return text


def marks(docker: Docker, container: str) -> frozenset[str]:
    """Which of `joined` and `serve.sh` the container carries."""
    done = docker.exec(container, ("ls", MARKS), timeout=EXEC_TIMEOUT_SECONDS, check=False)
    # A failed look is no proof of absence: an engine that serves must not be taken for one that never joined.
    if done.status != 0 and "no such file" not in done.stderr.lower():
        raise failure(docker.host.name, done)
    return frozenset(done.stdout.split())


def mark(docker: Docker, container: str, name: str, content: str = "") -> None:
    """Leave a mark in the container, whole or not at all."""
    path = f"{MARKS}/{name}"
    script = f'cat >"{path}.part" && mv "{path}.part" "{path}"'
    docker.exec(container, ("sh", "-c", script), input=content, timeout=EXEC_TIMEOUT_SECONDS)


def hand_over(session: Session, generation: Generation) -> None:
    """Tell every rank what to serve: the waiting first process becomes the engine (cluster/bootstrap.sh)."""
    session.guard()
    by_node = {rank.node: rank for rank in generation.ranks if rank.serve is not None}

    def tell(host: Host) -> None:
        rank = by_node[host.name]
        mark(Docker(host), rank.container, "serve.sh", f"exec {shell_text(rank.serve or ())}\n")

    session.connection.each(list(by_node), tell)
