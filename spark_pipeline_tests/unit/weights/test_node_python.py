"""A node has the Python of its distribution: the program must start on 3.10, whatever the orchestrator runs."""

from __future__ import annotations

import ast
import shutil
import subprocess
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


def test_the_program_runs_on_python_3_10_where_there_is_one(tmp_path):
    python = shutil.which("python3.10")
    if not python or subprocess.run((python, "--version"), capture_output=True, check=False).returncode:
        pytest.skip("no python3.10 on PATH")
    asked = Request("inventory", str(tmp_path), "", "", "", ())

    done = subprocess.run(
        (python, *command("inventory")[1:]),
        input=program() + asked.to_json().encode(),
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
