"""The shared lab on the command line: facts on stdout, progress on stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_pipeline.lab.lab import Lab

pytestmark = pytest.mark.lab


def spark_pipeline(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_pipeline.lab.cli", *words]
    above = Path(__file__).parents[2]
    return subprocess.run(command, cwd=above, capture_output=True, text=True, timeout=120, check=False)


def test_status_json_is_one_document_and_nothing_else(lab: Lab) -> None:
    answer = spark_pipeline("status", "--json")
    document = json.loads(answer.stdout)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert document["up"] is True
    assert [node["name"] for node in document["nodes"]][:2] == ["head", "peer"]
    assert document["hub_url"] == lab.plan.hub_url
    assert document["registry"] == lab.plan.registry_address
    assert Path(document["key"]).exists()


def test_up_of_a_lab_that_is_up_changes_nothing(lab: Lab) -> None:
    before = [node.pid for node in lab.status().nodes]
    answer = spark_pipeline("up")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("the lab is up\n")
    assert [node.pid for node in lab.status().nodes] == before
