"""`spark-pipeline lab up|down|status`: thin, facts on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from spark_pipeline.errors import LabError
from spark_pipeline.lab.content import move_to_next, prepare_hub, publish_replay
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.packages import ensure_packages
from spark_pipeline.lab.plan import MAX_NODES
from spark_pipeline.lab.progress import with_elapsed_time
from spark_pipeline.lab.replay_images import REPLAY_NAMES, ReplayName, replay_image
from spark_pipeline.lab.tiny_models import TINY


def _progress(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of the lab are for the person who gets them: their text, status 1, no traceback."""
    try:
        yield
    except LabError as error:
        click.echo(str(error), err=True)
        sys.exit(1)


@click.group()
def lab() -> None:
    """A virtual fleet on this machine: real sshd, Docker Engines, hub and registry, no GPU."""


@lab.command()
@click.option("--nodes", type=click.IntRange(1, MAX_NODES), default=2, show_default=True, help="At least so many.")
@click.option("--install", is_flag=True, help="Let apt-get install the programs that the lab lacks.")
def up(nodes: int, install: bool) -> None:
    """Start it, or mend what is not whole; does nothing when it is up."""
    say = with_elapsed_time(_progress)
    with _explained():
        if install:
            ensure_packages(say)
        fleet = Lab()
        status = fleet.up(nodes, say)
        prepare_hub(fleet.paths.hub, say)
        click.echo(status.to_text())


@lab.command()
@click.option("--purge", is_flag=True, help="Remove its cache too: roots, images, keys.")
def down(purge: bool) -> None:
    """End it; nothing of it stays but the cache."""
    with _explained():
        Lab().down(purge, with_elapsed_time(_progress))
    _progress("the lab is down")


@lab.command()
@click.argument("repo", default=TINY)
def move(repo: str) -> None:
    """Move branch main of a repository on the lab's hub to its next revision, as if its owner had pushed."""
    with _explained():
        click.echo(f"{repo}: main is now {move_to_next(Lab().paths.hub, repo)}")


@lab.command()
@click.argument("names", nargs=-1, type=click.Choice(REPLAY_NAMES), metavar="[IMAGE]...")
def replay(names: tuple[ReplayName, ...]) -> None:
    """Prepare the case that the project exists for: a model of 124 GB on the hub, old and new images on the head.

    \b
    Without IMAGE all of them: vllm-node, vllm-node-noray, vllm-qwen35, vllm-qwen35-noray, vllm-wrapper.
    The model has no weights: ask about it with `plan` and `probe`, it cannot be served.
    """
    say = with_elapsed_time(_progress)
    with _explained():
        fleet = Lab()
        for published in publish_replay(fleet.paths.hub):
            click.echo(f"hub: {published.repo} at {published.commits[-1]}")
        for name in names or REPLAY_NAMES:
            click.echo(f"head: {replay_image(fleet, say, name).reference}")


@lab.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(as_json: bool) -> None:
    """Say what is up."""
    with _explained():
        found = Lab().status()
    click.echo(found.to_json() if as_json else found.to_text())


if __name__ == "__main__":
    lab()
