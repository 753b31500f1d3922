"""A run that died in the wrong moment must not make every later one wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from spark_pipeline.defs.executor import tidy_pools

POOL = "fleet_lab"
ASSETS = """\
import dagster as dg
from spark_pipeline.defs.executor import tidy_executor

@dg.asset(pool="fleet_lab")
def stage() -> dg.MaterializeResult:
    return dg.MaterializeResult()

defs = dg.Definitions(assets=[stage], executor=tidy_executor)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "dagster.yaml").write_text(
        "telemetry: {enabled: false}\nconcurrency: {pools: {default_limit: 1, granularity: op}}\n"
    )
    return tmp_path


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def claim(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    """A run of this status that holds the pool."""
    run = create_run_for_test(instance, job_name="deploy_tiny", status=status)
    instance.event_log_storage.initialize_concurrency_limit_to_default(POOL)
    claimed = instance.event_log_storage.claim_concurrency_slot(POOL, run.run_id, "tiny__ray_cluster")
    assert claimed.is_claimed
    return run


def holders(instance: dg.DagsterInstance) -> set[str]:
    return {slot.run_id for slot in instance.event_log_storage.get_concurrency_info(POOL).claimed_slots}


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED])
def test_what_an_ended_run_holds_is_freed(instance: dg.DagsterInstance, status: dg.DagsterRunStatus):
    run = claim(instance, status)
    assert tidy_pools(instance, "mine") == [f"pool {POOL}: freed what run {run.run_id[:8]} held, which has ended"]
    assert holders(instance) == set()


def test_what_a_living_run_holds_is_left_to_it_and_said(instance: dg.DagsterInstance):
    run = claim(instance, dg.DagsterRunStatus.STARTED)
    (line,) = tidy_pools(instance, "mine")
    assert f"is held by run {run.run_id[:8]} (STARTED): waiting for it" in line
    assert holders(instance) == {run.run_id}


def test_materializing_after_a_run_that_died_goes_through_without_a_daemon(instance: dg.DagsterInstance, home: Path):
    claim(instance, dg.DagsterRunStatus.FAILURE)
    (home / "assets.py").write_text(ASSETS)
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "asset", "materialize", "--select", "*", "-f", "assets.py"],
        cwd=home,
        env=os.environ | {"DAGSTER_HOME": str(home), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "which has ended" in done.stdout + done.stderr
