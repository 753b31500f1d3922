"""`spark-pipeline`: parse, call a stage, print. Facts go to stdout, progress and errors to stderr.

Stages are imported by the command that calls them: `check` should answer at once.
"""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

import click

from spark_pipeline import text
from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.spec.project import Project

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else there.")


class _Commands(click.Group):
    """Our errors are for the person who gets them: the text, status 1, no traceback. `weights` and `lab` are loaded
    when they are asked for."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SparkPipelineError as error:
            click.echo(str(error), err=True)
            ctx.exit(1)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "lab":
            from spark_pipeline.lab.cli import lab

            return lab
        if cmd_name == "weights":
            from spark_pipeline.cli_weights import weights

            return weights
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "weights", "lab"]


@click.group(cls=_Commands, context_settings={"max_content_width": 110})
def main() -> None:
    """From declarations in data/ to a measured endpoint on your machines. What changes a fleet is also an asset:

    dagster asset materialize --select 'group:"tiny"' -m spark_pipeline.definitions
    """


@main.command()
def check() -> None:
    """Read all declarations; file, line and what to write instead for every mistake."""
    project = Project.load()
    counts = f"{len(project.deployments)} deployments, {len(project.fleets)} fleets, {len(project.profiles)} profiles"
    click.echo(f"{project.root / 'data'}: {counts}: all sound")


@main.group()
def fleet() -> None:
    """The machines themselves."""


@fleet.command()
@click.argument("name", metavar="FLEET")
@click.option("--replace", is_flag=True, help="Pin a changed key in the place of the old one.")
@as_json
def enroll(name: str, replace: bool, as_json: bool) -> None:
    """Pin the host key of every node: compare the fingerprints with those on the machines."""
    from spark_pipeline.fleet.known_hosts import enroll as pin

    project = Project.load()
    keys = pin(project.fleet(name), project.known_hosts, say, replace)
    click.echo(text.as_json(keys) if as_json else text.of_keys(keys))


@fleet.command()
@click.argument("name", metavar="FLEET")
@click.option("--record", "directory", type=click.Path(path_type=Path), help="Keep the raw answers in this folder.")
@as_json
def facts(name: str, directory: Path | None, as_json: bool) -> None:
    """What each machine is: processor, memory, disk, interconnect, Docker."""
    from spark_pipeline.fleet import facts as observed
    from spark_pipeline.fleet.connection import FleetConnection

    project = Project.load()
    declared = project.fleet(name)
    with FleetConnection(declared, project.known_hosts) as connection:
        names = [node.name for node in declared.nodes]
        raw = connection.each(names, lambda host: observed.record(host, declared.weights_dir))
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        for node, answer in raw.items():
            (directory / f"{node}.txt").write_text(answer, encoding="utf-8")
    nodes = tuple(observed.parse(node, answer) for node, answer in raw.items())
    click.echo(text.as_json(nodes) if as_json else text.of_facts(nodes))


@main.command()
@click.argument("deployment")
@click.option(
    "--facts",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Plan from recordings in this folder and contact nothing: NODE.txt of `fleet facts --record`, manifest.json, "
    "model.json, image_N.json and probe_N.json for candidate N (see spark_pipeline/plans.py).",
)
@as_json
def plan(deployment: str, directory: Path | None, as_json: bool) -> None:
    """Every stage's plan, with the exact commands and the reasons; changes nothing."""
    from spark_pipeline.fleet.session import open_session
    from spark_pipeline.plans import observed_plans, recorded_plans

    project = Project.load()
    if directory is not None:
        plans = recorded_plans(project, deployment, directory)
    else:
        with open_session(project, deployment, progress=say, run_id=run_id()) as session:
            plans = observed_plans(session)
    click.echo(text.as_json(plans) if as_json else text.of_plans(deployment, plans))


@main.command()
@click.argument("image")
@click.option("--model", metavar="REPO[@REV]", help="Also: can it serve this model, how is that known, and why not.")
@click.option("--fleet", help="Whose head to ask; default: the fleets that name the image, else all of them.")
@as_json
def probe(image: str, model: str | None, fleet: str | None, as_json: bool) -> None:
    """What an image has inside, asked in one container without GPU and network that goes at once.

    An image is asked once: what it answered is kept under data/state/images.
    """
    from spark_pipeline.compatibility.probe import model_of, probe_image

    project = Project.load()
    found = probe_image(project, image, model_of(project, model) if model else None, fleet, say)
    click.echo(text.as_json(found) if as_json else text.of_probe(found))


@main.command()
@click.argument("deployment", required=False)
@as_json
def status(deployment: str | None, as_json: bool) -> None:
    """What runs now, read from the nodes. Without a name: everything that was ever deployed from here.

    A fleet that cannot be asked does not hide the others; the exit status is 1 then.
    """
    from spark_pipeline.fleet.session import open_session
    from spark_pipeline.serving.status import status as look

    project = Project.load()
    names = [deployment] if deployment else [name for name in project.deployments if project.state_dir(name).is_dir()]
    found, failed = [], []
    for name in names:
        try:
            with open_session(project, name, progress=say, run_id=run_id()) as session:
                found.append(look(session))
        except SparkPipelineError as error:
            failed.append(name)
            say(f"{name}: {error}")
    if found or not failed:
        click.echo(text.as_json(found) if as_json else text.of_statuses(found))
    if failed:
        click.get_current_context().exit(1)


@main.command()
@click.argument("deployment")
def stop(deployment: str) -> None:
    """Remove the deployment's containers on every node; what they leave is seen gone."""
    from spark_pipeline.fleet.lease import hold
    from spark_pipeline.fleet.session import open_session
    from spark_pipeline.serving import stage

    owner = f"{getpass.getuser()}@{socket.gethostname()}, spark-pipeline stop"
    with (
        open_session(Project.load(), deployment, progress=say, run_id=run_id()) as session,
        hold(session.head, fleet=session.fleet.name, owner=owner, run_id=session.run_id, progress=say),
    ):
        removed = stage.stop(session)
    click.echo(text.of_removed(deployment, removed))


@main.command()
@click.argument("deployment", required=False)
@as_json
def history(deployment: str | None, as_json: bool) -> None:
    """What was measured, oldest first, each number with the image and the commit that it belongs to."""
    from spark_pipeline.benchmark.history import read

    project = Project.load()
    names = [project.deployment(deployment).name] if deployment else sorted(project.deployments)
    points = [point for name in names for point in read(project.benchmarks_file(name))]
    click.echo(text.as_json(points) if as_json else text.of_history(points))


@main.command()
def report() -> None:
    """Write the page of all measurements; prints where it is."""
    from spark_pipeline.benchmark.report import write_report

    click.echo(write_report(Project.load()))


def say(line: str) -> None:
    click.echo(line, err=True)


def run_id() -> str:
    return f"cli-{getpass.getuser()}-{os.getpid()}"


if __name__ == "__main__":
    main()
