"""Projects in a test's own folder, made from the shipped declarations."""

from __future__ import annotations

from pathlib import Path

import yaml

from spark_pipeline.fleet.session import Session
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.doubles import ScriptedConnection, ScriptedHost

DATA = Path(__file__).parents[1] / "data"


def tiny_project(root: Path, *candidates: str) -> Project:
    """The deployment `tiny` on the lab's fleet, with these image candidates."""
    for kind, name in (("fleets", "lab"), ("deployments", "tiny"), ("profiles", "smoke")):
        declared = yaml.safe_load((DATA / kind / f"{name}.yaml").read_text(encoding="utf-8"))
        if kind == "deployments":
            declared["image"]["candidates"] = list(candidates)
        (root / "data" / kind).mkdir(parents=True, exist_ok=True)
        (root / "data" / kind / f"{name}.yaml").write_text(yaml.safe_dump(declared))
    return Project.load(root)


def scripted_session(project: Project, head: ScriptedHost, peer: ScriptedHost, run_id: str = "run-1") -> Session:
    """A piece of work on `tiny` with machines that answer by a script."""
    connection = ScriptedConnection([head, peer])
    return Session(project, project.deployment("tiny"), connection, print, run_id)  # type: ignore[arg-type]
