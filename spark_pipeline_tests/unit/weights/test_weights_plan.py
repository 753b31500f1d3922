"""Deciding what has to be done, as data: no machine is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.errors import WeightsError
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.node.messages import AbsentFile, BadFile, Report
from spark_pipeline.weights.plan import WeightsPlan, plan
from spark_pipeline.weights.stage import printable

FILES = {"config.json": b"x" * 10, "model-1.bin": b"x" * 5_000_000, "model-2.bin": b"x" * 3_000_000}
NOTHING = Report(free_bytes=10**9, absent=tuple(AbsentFile(path, 0) for path in FILES))
DIRECTORY = "/models/lab/weights/" + "c" * 40


@pytest.fixture
def manifest(manifest_of):
    return manifest_of(FILES)


@pytest.fixture
def complete(manifest):
    return Report(free_bytes=0, sealed=manifest.sha256)


def test_nothing_is_left_to_do_where_everything_is_proven_even_on_a_full_disk(manifest, complete):
    planned = plan(manifest, DIRECTORY, {"head": complete, "peer": complete})

    assert not planned.changes
    assert planned.reasons()[1:] == (
        "head: every file is there, proven and unchanged since",
        "peer: every file is there, proven and unchanged since",
    )


def test_an_empty_fleet_downloads_on_the_head_and_copies_to_the_peer(manifest):
    planned = plan(manifest, DIRECTORY, {"head": NOTHING, "peer": NOTHING})

    assert planned.head.bring_bytes == planned.peers[0].bring_bytes == 8_000_010
    assert planned.reasons() == (
        f"lab/weights at {'c' * 40}: 3 files, 8.0 MB",
        "head: 3 files missing: download from the hub 8.0 MB (8.1 MB of 1.0 GB free)",
        "peer: 3 files missing: copy from the head over the fabric 8.0 MB (8.1 MB of 1.0 GB free)",
    )


def test_what_an_earlier_run_left_is_not_fetched_again(manifest):
    report = Report(free_bytes=10**9, absent=(AbsentFile("model-1.bin", 4_000_000),))

    planned = plan(manifest, DIRECTORY, {"head": report})

    assert planned.head.bring_bytes == 1_000_000
    assert planned.reasons()[1].startswith("head: model-1.bin missing: download from the hub 1.0 MB")


def test_files_that_were_not_read_since_they_changed_are_read_not_fetched(manifest, complete):
    planned = plan(manifest, DIRECTORY, {"head": replace(complete, unproven=("model-1.bin",))})

    assert [file.path for file in planned.head.prove] == ["model-1.bin"]
    assert planned.head.bring == ()
    assert planned.reasons()[1] == "head: model-1.bin (5.0 MB) there but not proven since they last changed: read"


def test_a_wrong_file_is_set_aside_and_only_that_one_comes_again(manifest, complete):
    bad = BadFile("model-2.bin", "3000000 bytes", "999 bytes")

    planned = plan(manifest, DIRECTORY, {"head": complete, "peer": replace(complete, bad=(bad,), free_bytes=10**9)})

    assert not planned.head.changes
    assert [file.path for file in planned.peers[0].bring] == ["model-2.bin"]
    assert "peer: model-2.bin is wrong (999 bytes, not 3000000 bytes): set aside" in planned.reasons()


def test_without_marker_nothing_counts_as_done(manifest, complete):
    planned = plan(manifest, DIRECTORY, {"head": replace(complete, sealed="")})

    assert planned.changes
    assert planned.reasons()[1] == "head: all files proven, only the marker is missing: write it"


def test_a_marker_of_another_manifest_is_no_marker(manifest, complete):
    assert plan(manifest, DIRECTORY, {"head": replace(complete, sealed="0" * 64)}).changes


def test_every_node_without_room_is_named_with_what_is_missing(manifest):
    short = replace(NOTHING, free_bytes=1_000_000)

    with pytest.raises(WeightsError, match="does not fit") as caught:
        plan(manifest, DIRECTORY, {"head": short, "peer": short})

    assert caught.value.observed.splitlines() == [
        "head: needs 8.1 MB, free 1.0 MB, missing 7.1 MB",
        "peer: needs 8.1 MB, free 1.0 MB, missing 7.1 MB",
    ]


def test_one_node_without_room_is_the_errors_node(manifest, complete):
    with pytest.raises(WeightsError) as caught:
        plan(manifest, DIRECTORY, {"head": complete, "peer": replace(NOTHING, free_bytes=0)})

    assert caught.value.node == "peer"


def test_what_stands_in_the_way_is_refused_on_the_node_where_it_stands(manifest, complete):
    blocked = replace(complete, obstacle="/models/lab is a symlink to /mnt")

    with pytest.raises(WeightsError) as caught:
        plan(manifest, DIRECTORY, {"head": complete, "peer": blocked})

    assert (caught.value.node, caught.value.observed) == ("peer", "/models/lab is a symlink to /mnt")


def test_a_directory_of_somebody_else_matters_only_when_something_must_be_written(manifest, complete):
    foreign = "/models belongs to root with mode 755; the pipeline logs in as spark"

    assert not plan(manifest, DIRECTORY, {"head": replace(complete, unwritable=foreign)}).changes
    with pytest.raises(WeightsError) as caught:
        plan(manifest, DIRECTORY, {"head": replace(NOTHING, unwritable=foreign)})
    assert caught.value.observed == foreign


class CountedPath(str):
    """A path that counts how often one of its kind is looked up or compared."""

    __slots__ = ()
    uses = 0

    def __hash__(self) -> int:
        CountedPath.uses += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedPath.uses += 1
        return super().__eq__(other)


def test_the_work_grows_with_the_number_of_files_not_with_its_square(manifest_of, monkeypatch):
    monkeypatch.setattr(CountedPath, "uses", 0)
    manifest = manifest_of({f"{number:03}.bin": b"x" for number in range(300)})
    paths = tuple(CountedPath(file.path) for file in manifest.files)

    planned = plan(manifest, DIRECTORY, {"head": Report(unproven=paths, before_restart=paths[::2])})
    prove = tuple(replace(file, path=path) for file, path in zip(planned.head.prove, paths, strict=True))
    reasons = WeightsPlan(manifest, DIRECTORY, (replace(planned.head, prove=prove),)).reasons()

    assert [reason.partition(" (")[0] for reason in reasons[1:]] == ["head: 150 files", "head: 150 files"]
    assert CountedPath.uses < 20 * 300


def test_the_commands_for_the_two_declared_sparks(manifest_of):
    sparks = Project.load(Path(__file__).parents[3]).fleet("sparks")
    manifest = manifest_of({"config.json": b"{}"}, repo="Qwen/Qwen3.5-122B-A10B-FP8")
    directory = f"{sparks.weights_dir}/{manifest.repo}/{manifest.commit}"
    nothing = Report(free_bytes=10**12, absent=(AbsentFile("config.json", 0),))

    stage_plan = printable(plan(manifest, directory, {"head": nothing, "peer": nothing}))

    assert [(command.node, command.argv[-1]) for command in stage_plan.commands] == [
        ("head", "verify"),
        ("peer", "verify"),
        ("head", "download"),
        ("head", "serve"),
        ("peer", "download"),
        ("head", "seal"),
        ("peer", "seal"),
    ]
