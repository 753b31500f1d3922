"""A project of its own for each test, and a Dagster instance that is real and forgets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from spark_pipeline.spec.project import Project

SHIPPED = Path(__file__).parents[3] / "data"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The shipped declarations in a folder where records may be written."""
    for folder in ("fleets", "deployments", "profiles"):
        shutil.copytree(SHIPPED / folder, tmp_path / "data" / folder)
    return tmp_path


@pytest.fixture
def project(root: Path) -> Project:
    return Project.load(root)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance
