"""The one `defs`: what `dagster`, the UI and the daemon load (`-m spark_pipeline.definitions`)."""

from __future__ import annotations

import click
import dagster as dg

from spark_pipeline.defs.build import build
from spark_pipeline.errors import DeclarationError
from spark_pipeline.spec.project import Project


class DeclarationsRefused(click.ClickException):
    """Dagster's command line prints a ClickException's message, file:line first, and ends with status 1; its code
    server shows it as the location's error. Any other exception would bury it under forty lines of traceback."""


def load() -> dg.Definitions:
    """Raises DeclarationsRefused: with every problem of every file, a line each."""
    try:
        project = Project.load()
    except DeclarationError as error:
        raise DeclarationsRefused(f"no definitions, the declarations are wrong\n{error}") from None
    return build(project)


defs = load()
