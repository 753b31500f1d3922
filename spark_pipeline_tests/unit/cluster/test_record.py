"""Whose generation a running container is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.cluster.generation import LABEL
from spark_pipeline.cluster.record import generation_behind, write_generation
from spark_pipeline.fleet.docker import Container
from spark_pipeline_tests.unit.benchmark.samples import generation

WRITTEN = generation()
RUNNING = Container(
    node="head",
    name="sp-tiny-g3-r0",
    container_id="1",
    image_id="sha256:1",
    labels={
        LABEL + "generation": str(WRITTEN.number),
        LABEL + "spec_hash": WRITTEN.spec_hash,
        LABEL + "run_id": WRITTEN.run_id,
    },
    state="running",
    exit_code=None,
    started_at="",
)


def test_a_container_leads_back_to_what_was_written_when_it_was_started(tmp_path: Path):
    write_generation(tmp_path, WRITTEN)
    assert generation_behind(tmp_path, RUNNING) == WRITTEN


@pytest.mark.parametrize("label", ["spec_hash", "run_id"])
def test_a_number_that_another_checkout_gave_is_not_taken_for_ones_own(tmp_path: Path, label: str):
    write_generation(tmp_path, WRITTEN)
    foreign = replace(RUNNING, labels={**RUNNING.labels, LABEL + label: "another"})
    assert generation_behind(tmp_path, foreign) is None


@pytest.mark.parametrize("number", ["2", "", "x"])
def test_a_container_without_record_is_nobodys(tmp_path: Path, number: str):
    write_generation(tmp_path, WRITTEN)
    assert (
        generation_behind(tmp_path, replace(RUNNING, labels={**RUNNING.labels, LABEL + "generation": number})) is None
    )
