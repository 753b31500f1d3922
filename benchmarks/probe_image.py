"""What asking an image costs, as ratios against the bare commands that do no more than the engine's own part of it.

    python benchmarks/probe_image.py [--fleet lab] [--image vllm-cpu:0.32.0] [--architecture Qwen3ForCausalLM]

Needs a head that holds the image (`make demo`). Alternates in one run, each in a container of its own on the head:

- bare: `docker run IMAGE python3 -c "from vllm import ModelRegistry; ..."`, which inspects the class;
- probe: `image.facts.probe` with the architecture, nothing known before: facts, inspection, cache written;
- start: `docker run IMAGE python3 -c pass`;
- static: `image.facts.probe` without an architecture.

The bounds: probe / bare 1.30; static minus start 2 s. A second probe must start no container and take under a second.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Host
from spark_pipeline.image import facts
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.spec.project import Project

RATIO_BOUND = 1.30
STATIC_BOUND_SECONDS = 2.0
SECOND_BOUND_SECONDS = 1.0
LIMIT_SECONDS = 600.0


def seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def by_hand(head: Host, image: ImageFacts, program: str) -> float:
    """Seconds of one Python program in a container of the image."""
    argv = ("docker", "run", "--rm", "--network", "none", "-w", "/", "--entrypoint", "python3", image.image_id)
    return seconds(lambda: head.run((*argv, "-c", program), timeout=LIMIT_SECONDS))


def quiet(_: str) -> None:
    """Progress that nobody reads."""


def probe(head: Host, image: ImageFacts, project: Project, wanted: Wanted | None) -> float:
    return seconds(lambda: facts.probe(head, image, project, quiet, wanted))


def measure(head: Host, image: ImageFacts, architecture: str, rounds: int) -> dict[str, float]:
    """Median seconds of each."""
    inspect = f"from vllm import ModelRegistry; ModelRegistry.models[{architecture!r}].inspect_model_cls()"
    wanted = Wanted((architecture,))
    times: dict[str, list[float]] = {name: [] for name in ("bare", "probe", "again", "start", "static")}
    for number in range(1, rounds + 1):
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as little:
            asked, unasked = (Project(Path(folder), {}, {}, {}) for folder in (whole, little))
            times["bare"].append(by_hand(head, image, inspect))
            times["probe"].append(probe(head, image, asked, wanted))
            times["again"].append(probe(head, image, asked, wanted))
            times["start"].append(by_hand(head, image, "pass"))
            times["static"].append(probe(head, image, unasked, None))
        click.echo(f"round {number}: " + ", ".join(f"{name} {taken[-1]:.2f} s" for name, taken in times.items()))
    return {name: statistics.median(taken) for name, taken in times.items()}


@click.command(help=__doc__)
@click.option("--fleet", default="lab", show_default=True)
@click.option("--image", "reference", default="vllm-cpu:0.32.0", show_default=True)
@click.option("--architecture", default="Qwen3ForCausalLM", show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(fleet: str, reference: str, architecture: str, rounds: int) -> None:
    project = Project.load()
    machines = project.fleet(fleet)
    try:
        with FleetConnection(machines, project.known_hosts) as connection:
            head = connection.host(machines.head.name)
            image = Docker(head).image(reference)
            if image is None:
                raise click.ClickException(f"{machines.head.name} does not hold {reference}")
            taken = measure(head, image, architecture, rounds)
    except SparkPipelineError as error:
        raise click.ClickException(str(error)) from error
    ratio, more = taken["probe"] / taken["bare"], taken["static"] - taken["start"]
    click.echo(f"{reference}, {architecture}: probe / bare = {ratio:.2f} (bound {RATIO_BOUND:.2f})")
    click.echo(f"static facts: {more:.2f} s over starting a container (bound {STATIC_BOUND_SECONDS:.2f} s)")
    click.echo(f"asked again: {taken['again'] * 1000:.0f} ms (bound {SECOND_BOUND_SECONDS * 1000:.0f} ms)")
    kept = ratio <= RATIO_BOUND and more <= STATIC_BOUND_SECONDS and taken["again"] <= SECOND_BOUND_SECONDS
    raise SystemExit(0 if kept else 1)


if __name__ == "__main__":
    main()
