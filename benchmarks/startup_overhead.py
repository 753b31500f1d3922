"""What the pipeline adds to the engine's own start-up, as a ratio against the same commands typed by hand.

    python benchmarks/startup_overhead.py [--deployment tiny] [--rounds 2]

Needs a fleet on which the deployment's weights and image already are (`make demo`). Alternates in one run:

- by hand: `docker run` on every node (waiting containers), `ray start` on the head, then on each peer, `vllm serve`
  in the head's container; or `vllm serve` in every container for mp. Same image, flags and environment.
- pipeline: `cluster.ensure` and `serving.ensure`, with join gate, readiness and completion.

Both end with the first successful completion. The bound is 1.20.
"""

from __future__ import annotations

import os
import statistics
import time

import click

from spark_pipeline.cluster import commands, containers
from spark_pipeline.cluster import stage as cluster
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.host import shell_text
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.serving import api
from spark_pipeline.serving import stage as serving
from spark_pipeline.spec.project import Project

BOUND = 1.20
PATIENCE_SECONDS = 600.0


def by_hand(session: Session) -> float:
    """Seconds from the first `docker run` to the first completion."""
    generation = cluster.plan(session).generation
    if generation is None:
        raise click.ClickException("the deployment runs; stop it first")
    started = time.monotonic()
    try:
        for rank in generation.ranks:
            Docker(session.connection.host(rank.node)).start(_waiting(rank.run))
        for rank in generation.ranks:
            docker = Docker(session.connection.host(rank.node))
            if ray := _ray_start(rank.run):
                docker.exec(rank.container, [word for word in ray if word != "--block"], timeout=120)
        for rank in reversed(generation.ranks):
            if rank.serve is not None:
                line = f"exec {shell_text(rank.serve)} >/proc/1/fd/1 2>&1"
                words = ("docker", "exec", "--detach", "-w", "/", rank.container, "sh", "-c", line)
                session.connection.host(rank.node).run(words, timeout=60)
        _wait_for_completion(session, generation)
        return time.monotonic() - started
    finally:
        containers.remove_generation(session, generation)


def through_pipeline(session: Session) -> float:
    """Seconds of the two stages together, which end with a completion."""
    started = time.monotonic()
    try:
        serving.ensure(session)
        return time.monotonic() - started
    finally:
        serving.stop(session)


def _waiting(run: tuple[str, ...]) -> tuple[str, ...]:
    """The same `docker run`, its first process only waiting."""
    head = run[: run.index(commands.bootstrap())]
    return (*head, "exec sleep infinity")


def _ray_start(run: tuple[str, ...]) -> tuple[str, ...]:
    tail = run[run.index(commands.bootstrap()) :]
    return tail[tail.index("ray") :] if "ray" in tail else ()


def _wait_for_completion(session: Session, generation: Generation) -> None:
    head = session.connection.host(generation.head.node)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if api.model_ids(head, generation.port):
            api.complete(head, generation.port, generation.served_name)
            return
        time.sleep(0.3)
    raise click.ClickException("the engine started by hand did not answer")


@click.command(help=__doc__)
@click.option("--deployment", default="tiny", show_default=True)
@click.option("--rounds", default=2, show_default=True)
def main(deployment: str, rounds: int) -> None:
    def progress(text: str) -> None:
        click.echo(f"  {text}", err=True)

    hand: list[float] = []
    pipeline: list[float] = []
    try:
        with open_session(Project.load(), deployment, progress=progress, run_id=f"benchmark-{os.getpid()}") as session:
            serving.stop(session)
            for number in range(rounds):
                hand.append(by_hand(session))
                click.echo(f"round {number + 1}: by hand  {hand[-1]:6.1f} s")
                pipeline.append(through_pipeline(session))
                click.echo(f"round {number + 1}: pipeline {pipeline[-1]:6.1f} s")
    except SparkPipelineError as error:
        raise click.ClickException(str(error)) from error
    ratio = statistics.median(pipeline) / statistics.median(hand)
    click.echo(f"{deployment}: pipeline / by hand = {ratio:.2f} (bound {BOUND:.2f})")
    raise SystemExit(0 if ratio <= BOUND else 1)


if __name__ == "__main__":
    main()
