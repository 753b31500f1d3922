"""One measurement against scripted machines: what is refused, and what a believed point carries."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from spark_pipeline.benchmark.plan import Run, plan_benchmark
from spark_pipeline.benchmark.run import Measured, end_program, measure, to_point
from spark_pipeline.benchmark.sight import Sighting, sight
from spark_pipeline.errors import BenchmarkError, DockerUnavailableError
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline_tests.doubles import ScriptedConnection, ScriptedHost
from spark_pipeline_tests.unit.benchmark.samples import SMOKE, container, endpoint, generation, native

GENERATION = generation()
RUN: Run = plan_benchmark(GENERATION, [SMOKE], [], salt="run-1").runs[0]
TABLE = """============ Serving Benchmark Result ============
Successful requests:                     0
Request throughput (req/s):              0.00
P95 ITL (ms):                            0.00
"""
EXEC = ("docker", "exec", "-w", "/", "sp-tiny-g3-r0")
INPUT = ("docker", "exec", "-i", "-w", "/", "sp-tiny-g3-r0")


class Machines:
    """The head and the peer of generation 3."""

    def __init__(self) -> None:
        self.head, self.peer = ScriptedHost("head"), ScriptedHost("peer")
        self.scripted = ScriptedConnection([self.head, self.peer])
        self.connection = cast(FleetConnection, self.scripted)

    def seen(self, *, head: str = container(0), peer: str = container(1), answer: str = endpoint()) -> Machines:
        self.head.on("docker", "container", "inspect", ..., stdout=head)
        self.peer.on("docker", "container", "inspect", ..., stdout=peer)
        self.head.on("docker", "exec", "-i", "-w", "/", "sp-tiny-g3-r0", "python3", "-", "8000", stdout=answer)
        return self

    def loaded(self, result: str, *, said: str = "", status: int = 0) -> Machines:
        self.head.on(*EXEC, "env", ..., "vllm", "bench", "serve", ..., stdout=said, status=status)
        self.head.on(*EXEC, "cat", RUN.result_file, stdout=result, times=None)
        self.head.on("sh", "-c", ..., "sp-tiny-g3-r0", stdout="ERROR EngineDeadError\n", times=None)
        self.head.on(*EXEC, "rm", "-f", RUN.result_file)
        return self

    def before(self) -> Sighting:
        self.seen()
        return sight(self.connection, GENERATION)

    def measure(self, before: Sighting) -> Measured:
        return measure(self.connection, GENERATION, RUN, before)


def test_a_believed_point_carries_the_numbers_and_all_that_produced_them():
    machines = Machines()
    machines.seen(answer=endpoint(finished=10, looked_up=1000, cached=0))
    before = sight(machines.connection, GENERATION)
    machines.loaded(native()).seen(answer=endpoint(finished=21, looked_up=1500, cached=50))
    measured = machines.measure(before)
    machines.scripted.finish()
    point = to_point(GENERATION, measured, run_id="run-2", native_file="tiny/x.json")
    assert (point.deployment, point.nodes, point.spec_hash) == ("tiny", ("head", "peer"), GENERATION.spec_hash)
    assert (point.profile, point.concurrency, point.requests, point.seed) == ("smoke", 1, 8, RUN.seed)
    assert (point.vllm_version, point.ray_version, point.tool_version) == ("0.32.0+cpu", "2.53.0", "0.32.0+cpu")
    assert point.output_tokens_per_second == pytest.approx(185.118, abs=1e-3)
    assert point.prefix_cache_hit_rate == pytest.approx(0.1)
    assert point.other_requests == 3  # 11 finished, 8 of them ours
    assert point.started_at.utcoffset() is not None


def test_counters_that_the_engine_does_not_publish_stay_unknown():
    machines = Machines()
    blind = '{"models": ["tiny"]}'
    machines.seen(answer=blind)
    before = sight(machines.connection, GENERATION)
    measured = machines.loaded(native()).seen(answer=blind).measure(before)
    point = to_point(GENERATION, measured, run_id="run-2", native_file="x")
    assert (point.prefix_cache_hit_rate, point.other_requests) == (None, None)


def test_failed_requests_are_told_with_counts_the_tools_words_and_the_engines_log():
    machines = Machines()
    before = machines.before()
    machines.loaded(native(completed=0, failed=8), said=f"Error 0: Connection refused\n{TABLE}")
    with pytest.raises(BenchmarkError) as refused:
        machines.measure(before)
    machines.scripted.finish()
    assert refused.value.node == "head"
    for words in ("0 of 8 completed, 8 failed", "Error 0: Connection refused", "ERROR EngineDeadError"):
        assert words in refused.value.observed
    assert "P95 ITL" not in refused.value.observed
    assert "====" not in refused.value.observed


@pytest.mark.parametrize(("status", "words"), [(124, "did not end within"), (127, "status 127"), (1, "status 1")])
def test_a_tool_that_fails_or_hangs_is_told_with_its_last_words(status: int, words: str):
    machines = Machines()
    before = machines.before()
    machines.loaded("", said="unrecognized arguments: --seed\n", status=status)
    with pytest.raises(BenchmarkError) as refused:
        machines.measure(before)
    assert words in refused.value.what
    assert "unrecognized arguments" in refused.value.observed


@pytest.mark.parametrize("node", ["head", "peer"])
def test_a_container_that_was_restarted_meanwhile_spoils_the_point(node: str):
    machines = Machines()
    before = machines.before()
    again = {node: container(0 if node == "head" else 1, started_at="2026-11-30T12:30:00Z")}
    machines.loaded(native()).seen(**again)
    with pytest.raises(BenchmarkError, match="restarted under the benchmark") as refused:
        machines.measure(before)
    assert refused.value.node == node
    assert "2026-11-30T12:30:00Z" in refused.value.observed


def test_an_engine_log_that_cannot_be_read_hides_no_error():
    machines = Machines()
    before = machines.before()
    machines.head.on(*EXEC, "env", ..., status=1)
    machines.head.on("sh", ..., error=DockerUnavailableError("the Docker Engine does not run", node="head"))
    machines.head.on(*EXEC, "rm", ..., error=DockerUnavailableError("the Docker Engine does not run", node="head"))
    with pytest.raises(BenchmarkError, match="status 1") as refused:
        machines.measure(before)
    assert "the Docker Engine does not run" in refused.value.observed


@pytest.mark.parametrize("gone", [False, True])
def test_a_cancelled_run_is_ended_in_the_container_too(gone: bool):
    machines = Machines()
    before = machines.before()
    error = DockerUnavailableError("the Docker Engine does not run", node="head") if gone else None
    machines.head.on(*EXEC, "env", ..., error=cast(Exception, KeyboardInterrupt()))
    machines.head.on(*INPUT, "python3", "-", error=error).on(*EXEC, "rm", "-f", RUN.result_file)
    with pytest.raises(KeyboardInterrupt):
        machines.measure(before)
    machines.scripted.finish()
    sent = machines.head.inputs[machines.head.commands.index((*INPUT, "python3", "-"))]
    assert sent == end_program(RUN)


def test_ending_a_run_ends_its_own_processes_and_no_others():
    other: Run = plan_benchmark(GENERATION, [SMOKE], [], salt="run-2").runs[0]
    started = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "--result-filename", Path(name).name])
        for name in (RUN.result_file, other.result_file)
    ]
    try:
        done = subprocess.run([sys.executable, "-"], input=end_program(RUN), text=True, timeout=30, check=False)
        assert done.returncode == 0
        assert started[0].wait(timeout=10) == -signal.SIGKILL
        assert started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()


def sight_of(**seen: str) -> Sighting:
    machines = Machines()
    machines.seen(**seen)
    return sight(machines.connection, GENERATION)


def test_another_specs_container_is_not_measured():
    with pytest.raises(BenchmarkError) as refused:
        sight_of(peer=container(1, spec_hash="ffff"))
    assert refused.value.node == "peer"
    assert "spec_hash ffff, recorded 00aa11bb22cc33dd" in refused.value.observed


def test_a_stopped_container_is_not_measured():
    with pytest.raises(BenchmarkError) as refused:
        sight_of(peer=container(1).replace('"running"', '"exited"'))
    assert "state exited, exit status 0" in refused.value.observed


def test_a_missing_container_is_not_measured():
    machines = Machines()
    machines.head.on("docker", "container", "inspect", ..., stdout=container(0))
    machines.peer.on("docker", "container", "inspect", ..., status=1, stderr="Error: No such container: sp-tiny-g3-r1")
    with pytest.raises(BenchmarkError, match="sp-tiny-g3-r1 is gone"):
        sight(machines.connection, GENERATION)


def test_another_model_behind_the_port_is_not_measured():
    with pytest.raises(BenchmarkError) as refused:
        sight_of(answer=endpoint(models=("glm-4.7-flash",)))
    assert "glm-4.7-flash; declared: tiny" in refused.value.observed


def test_a_port_that_nobody_answers_is_not_measured():
    with pytest.raises(BenchmarkError, match="nothing answers on port 8000") as refused:
        sight_of(answer='{"error": "URLError: Connection refused"}')
    assert "Connection refused" in refused.value.observed


def test_a_probe_that_says_something_else_is_refused():
    with pytest.raises(BenchmarkError, match="nothing readable"):
        sight_of(answer="Traceback (most recent call last):")


def test_a_container_that_ends_between_two_looks_is_not_measured():
    machines = Machines()
    machines.head.on("docker", "container", "inspect", ..., stdout=container(0))
    machines.peer.on("docker", "container", "inspect", ..., stdout=container(1))
    machines.head.on("docker", "exec", "-i", ..., status=1, stderr="Container c7c7f4aa6ca9 is not running")
    with pytest.raises(BenchmarkError) as refused:
        sight(machines.connection, GENERATION)
    assert "is not running" in refused.value.observed
