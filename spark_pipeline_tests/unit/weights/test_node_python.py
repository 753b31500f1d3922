"""A node has the Python of its distribution: the program must start on 3.10, whatever the orchestrator runs."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from importlib import resources

import pytest

from spark_pipeline.weights.node.messages import Request
from spark_pipeline.weights.node_program import _MODULES, command, program

SOURCES = {
    path.name.removesuffix(".py"): path.read_text(encoding="utf-8")
    for path in resources.files("spark_pipeline.weights.node").iterdir()
    if path.name.endswith(".py") and path.name != "__init__.py"
}


@pytest.mark.parametrize("name", SOURCES)
def test_each_module_is_written_in_python_3_10(name):
    ast.parse(SOURCES[name], feature_version=(3, 10))


def test_no_module_is_left_at_home():
    assert sorted(_MODULES) == sorted(SOURCES)


def pythons() -> list[str]:
    """This one; and 3.10 itself where it is installed (pyenv has names of Pythons that are not)."""
    oldest = shutil.which("python3.10")
    is_there = oldest and subprocess.run((oldest, "--version"), capture_output=True, check=False).returncode == 0
    return [sys.executable, oldest] if oldest and is_there else [sys.executable]


@pytest.mark.parametrize("python", pythons())
def test_the_program_runs_by_itself(tmp_path, python):
    asked = Request("inventory", str(tmp_path), "", "", "", ())

    done = subprocess.run(
        (python, *command("inventory")[1:]),
        input=program() + asked.to_json().encode(),
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
