"""Measuring a real engine on a real node: what is written down, what is refused, what is left behind."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from spark_pipeline.benchmark import stage as benchmark
from spark_pipeline.benchmark.history import read
from spark_pipeline.benchmark.plan import plan_benchmark
from spark_pipeline.benchmark.run import measure
from spark_pipeline.benchmark.sight import sight
from spark_pipeline.cluster.generation import Generation
from spark_pipeline.compatibility import stage as compatibility
from spark_pipeline.errors import BenchmarkError
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.image import stage as image
from spark_pipeline.lab.images import engine_image
from spark_pipeline.lab.lab import Lab
from spark_pipeline.serving import stage as serving
from spark_pipeline.spec.profile import Point, Profile
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import stage as weights

pytestmark = pytest.mark.lab

DATA = Path(__file__).parents[2] / "data"
NAME = "measured"


def say(text: str) -> None:
    print(text, file=sys.stderr)


@pytest.fixture(scope="module")
def session(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One rank on the head: vLLM's CPU build with the tiny model, serving, in a project of the test's own."""
    root = tmp_path_factory.mktemp("project")
    for folder, file in (("fleets", "lab"), ("profiles", "smoke")):
        (root / "data" / folder).mkdir(parents=True)
        shutil.copy(DATA / folder / f"{file}.yaml", root / "data" / folder)
    declared = yaml.safe_load((DATA / "deployments" / "tiny.yaml").read_text()) | {
        "name": NAME,
        "parallel": {"tensor": 1, "pipeline": 1},
        "backend": "mp",
        "image": {"candidates": [engine_image(lab, say).reference], "augment": "never"},
    }
    declared["serve"] |= {"port": 8120}
    (root / "data" / "deployments").mkdir()
    (root / "data" / "deployments" / f"{NAME}.yaml").write_text(yaml.safe_dump(declared))
    project = Project.load(root)
    enroll(project.fleet("lab"), project.known_hosts, say)
    with open_session(project, NAME, progress=say, run_id="test-benchmark") as session:
        weights.ensure(session)
        compatibility.ensure(session)
        image.ensure(session)
        try:
            serving.ensure(session)
            yield session
        finally:
            serving.stop(session)


@pytest.fixture
def generation(session: Session) -> Generation:
    return serving.ensure(session).record.generation


def results_in_container(session: Session, generation: Generation) -> str:
    listed = Docker(session.head).exec(generation.head.container, ("ls", "/tmp"), timeout=30).stdout
    return "\n".join(name for name in listed.splitlines() if "benchmark" in name)


def test_every_point_is_measured_once_with_real_numbers(session: Session, generation: Generation):
    first = benchmark.ensure(session)
    assert (first.changed, first.measured) == (True, 2)
    assert [point.concurrency for point in first.points] == [1, 8]
    for point in first.points:
        assert (point.completed, point.failed) == (point.requests, 0)
        assert point.output_tokens_total == point.requests * point.output_tokens
        assert point.output_tokens_per_second == pytest.approx(point.output_tokens_total / point.duration_seconds)
        assert point.tpot_ms is not None
        # An answer takes its first token and fifteen more.
        assert point.e2e_ms.mean == pytest.approx(point.ttft_ms.mean + 15 * point.tpot_ms.mean, rel=0.02)
        assert (point.other_requests, point.spec_hash) == (0, generation.spec_hash)
        assert point.prefix_cache_hit_rate is not None
        assert point.prefix_cache_hit_rate < 0.1
        assert (first.history_file.parent / point.native_file).exists()
    assert len({point.seed for point in first.points}) == 2
    assert results_in_container(session, generation) == ""

    second = benchmark.ensure(session)
    assert (second.changed, second.points) == (False, first.points)
    assert read(first.history_file) == first.points


def test_requests_that_the_engine_refuses_make_no_point(session: Session, generation: Generation):
    long = Profile(name="long", points=(Point(input_tokens=600, output_tokens=8, concurrency=4, requests=4),))
    unlimited = generation.model_copy(update={"max_model_len": None})  # else the plan would refuse it beforehand
    run = plan_benchmark(unlimited, [long], [], salt="refused").runs[0]
    with pytest.raises(BenchmarkError) as refused:
        measure(session.connection, generation, run, sight(session.connection, generation))
    assert "0 of 4 completed, 4 failed" in refused.value.observed
    assert "Bad Request" in refused.value.observed
    assert results_in_container(session, generation) == ""


def test_an_engine_that_dies_under_the_load_makes_no_point(session: Session, generation: Generation):
    before = read(session.project.benchmarks_file(NAME))
    docker = Docker(session.head)
    killer = threading.Timer(8, lambda: docker.remove([generation.head.container]))
    killer.start()
    with pytest.raises(BenchmarkError) as refused:
        benchmark.ensure(session, force=True)
    killer.join()
    assert refused.value.node == "head"
    assert read(session.project.benchmarks_file(NAME)) == before
