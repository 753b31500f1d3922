"""Notes of what was proven: written now and then while there is much to note, and all of them at the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.lab.hub_faults import Fault
from spark_pipeline.weights.node import proofs

FILES = {f"{number}.bin": b"x" * number for number in range(40)}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many proofs there were, each time they were written."""
    counts: list[int] = []
    real = proofs.write_json

    def write_json(path: Path, content: dict[str, object], **more: bool) -> None:
        if path.name == "proofs.json":
            counts.append(len(content))
        real(path, content, **more)

    monkeypatch.setattr(proofs, "write_json", write_json)
    monkeypatch.setattr(proofs, "WRITE_EVERY_SECONDS", 1000.0)
    return counts


def noted(node) -> int:
    return len(json.loads((node.directory / ".spark_pipeline" / "proofs.json").read_text()))


def lay(node) -> None:
    node.directory.mkdir(parents=True)
    for path, content in FILES.items():
        (node.directory / path).write_bytes(content)


def test_many_files_that_are_read_are_noted_in_few_writes(node_with, written):
    node = node_with(FILES)
    lay(node)

    report = node.do("verify")

    assert report.unproven == ()
    assert len(written) <= 2
    assert noted(node) == len(FILES)
    assert node.do("seal").sealed == node.manifest.sha256


def test_many_files_that_are_fetched_are_noted_in_few_writes(node_with, written):
    node = node_with(FILES)

    report = node.download()

    assert (report.absent, report.unproven) == ((), ())
    assert len(written) <= 2
    assert noted(node) == len(FILES)


def test_many_files_that_are_linked_are_noted_in_few_writes(node_with, hub, written):
    old = node_with(FILES)
    old.download()
    new = replace(old, manifest=hub.publish({**FILES, "new.bin": b"new"}))
    written.clear()

    assert new.do("verify").linked_files == len(FILES)

    assert len(written) <= 4  # two revisions, before and after
    assert (old.do("inspect").unproven, new.do("inspect").unproven) == ((), ())


def test_a_run_that_fails_keeps_what_it_has_proven(node_with, hub, written):
    node = node_with(FILES)
    hub.fault(Fault(kind="flip", path="1.bin"))

    with pytest.raises(SparkPipelineError):
        node.download()

    there = [path for path in FILES if (node.directory / path).exists()]
    assert noted(node) == len(there) > 1


def test_a_repeat_writes_nothing(node_with, written):
    node = node_with(FILES)
    node.download()
    written.clear()

    node.do("verify")
    node.download()

    assert written == []


def test_with_time_going_by_notes_are_written_on_the_way(node_with, written, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proofs, "WRITE_EVERY_SECONDS", 0.0)
    node = node_with(FILES)
    lay(node)

    node.do("verify")

    assert sorted(written) == list(range(1, len(FILES) + 1))
