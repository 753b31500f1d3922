"""`make demo` as a newcomer types it, on real parts. Where it is up already, it stays up as it is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from spark_pipeline.lab.lab import Lab
from spark_pipeline.serving.record import ServingRecord, find_record
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.webserver import REPOSITORY

pytestmark = pytest.mark.lab

# With an engine image that must be built first, on a busy machine.
_SECONDS = 1800


def record() -> ServingRecord | None:
    return find_record(Project.load(REPOSITORY), "tiny")


def make_demo() -> str:
    done = subprocess.run(
        ["make", "demo"], cwd=REPOSITORY, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def demo(lab: Lab) -> Iterator[str]:
    """What it printed."""
    was_up = record() is not None
    yield make_demo()
    if not was_up:
        stop = [REPOSITORY / ".venv" / "bin" / "spark-pipeline", "stop", "tiny"]
        subprocess.run(stop, cwd=REPOSITORY, check=True, timeout=120, capture_output=True)


def test_the_demo_ends_with_an_endpoint_that_answers_and_a_repeat_changes_nothing(demo, lab):
    served = record()
    assert served is not None
    assert f"endpoint   {served.url}/v1" in demo
    assert "OUTPUT TOK/S" in demo
    ask = ["curl", "--silent", "--fail", f"{served.url}/v1/models"]
    models = json.loads(subprocess.run(ask, capture_output=True, check=True, timeout=30).stdout)
    assert [model["id"] for model in models["data"]] == ["tiny"]
    ray = lab.run_in_node("head", ["docker", "exec", served.generation.head.container, "ray", "status"], timeout=60)
    assert "2.0/2.0 GPU" in ray.stdout

    again = make_demo()
    assert "tiny/serving_endpoint: serves already" in again
    assert "points were measured before with this spec" in again
    assert record() == served
