"""`spark-pipeline weights list|prune`: the models' files that lie on the nodes."""

from __future__ import annotations

import getpass
import socket
from contextlib import nullcontext

import click

from spark_pipeline import text
from spark_pipeline.cli import as_json, run_id, say
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.lease import hold
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.inventory import list_revisions, prune


@click.group()
def weights() -> None:
    """The models' files on the nodes."""


@weights.command("list")
@click.argument("fleet")
@as_json
def list_weights(fleet: str, as_json: bool) -> None:
    """Every revision on every node, its size, and who needs it."""
    project = Project.load()
    declared = project.fleet(fleet)
    with FleetConnection(declared, project.known_hosts) as connection:
        found = list_revisions(project, declared, connection)
    click.echo(text.as_json(found) if as_json else text.of_revisions(found))


@weights.command("prune")
@click.argument("fleet")
@click.option("--yes", is_flag=True, help="Remove; without it, only show what would go.")
@as_json
def prune_weights(fleet: str, yes: bool, as_json: bool) -> None:
    """Remove the revisions that nobody needs: no deployment has, resolved, serves or served well last, and no container
    has."""
    project = Project.load()
    declared = project.fleet(fleet)
    owner = f"{getpass.getuser()}@{socket.gethostname()}, spark-pipeline weights prune"
    with FleetConnection(declared, project.known_hosts) as connection:
        head = connection.host(declared.head.name)
        with hold(head, fleet=fleet, owner=owner, run_id=run_id(), progress=say) if yes else nullcontext() as lease:
            spare = [one for one in list_revisions(project, declared, connection) if not one.needed_by]
            if lease:
                prune(declared, connection, spare, say, lease.check)
    click.echo(text.as_json(spare) if as_json else text.of_spare(spare, removed=yes))
