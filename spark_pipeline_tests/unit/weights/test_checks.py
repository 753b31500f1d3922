"""What the checks say of files as the nodes report them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.weights.checks import COMPLETE, PROVEN, ROOM, Check, checks
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.node.messages import AbsentFile, BadFile, Report
from spark_pipeline.weights.record import WeightsRecord
from spark_pipeline.weights.result import NodeResult, WeightsResult

MANIFEST = Manifest(
    repo="lab/tiny",
    commit="c" * 40,
    files=tuple(ManifestFile(path=f"model-{n}.safetensors", size_bytes=500, sha256="a" * 64) for n in (1, 2)),
)
GOOD = Report(free_bytes=5_000, sealed=MANIFEST.sha256)


def asked(peer: Report) -> dict[str, Check]:
    record = WeightsRecord(
        repo=MANIFEST.repo,
        revision="main",
        commit=MANIFEST.commit,
        directory="/models",
        size_bytes=MANIFEST.size_bytes,
        files=2,
        manifest_sha256=MANIFEST.sha256,
        run_id="run",
        verified_at=datetime.now(UTC),
    )
    result = WeightsResult(
        record, False, StagePlan("model_weights", False, ()), "", (), MANIFEST, {"head": GOOD, "peer": peer}
    )
    return {check.name: check for check in checks(result)}


def test_all_hold_where_every_node_has_and_proved_every_file() -> None:
    found = asked(GOOD)
    assert all(check.passed and not check.remedy for check in found.values())
    assert found[COMPLETE].findings == {"head": "2 of 2 files", "peer": "2 of 2 files"}


@pytest.mark.parametrize(
    ("peer", "failed"),
    [
        (replace(GOOD, absent=(AbsentFile("model-1.safetensors", 0),)), {COMPLETE, PROVEN}),
        (replace(GOOD, bad=(BadFile("model-1.safetensors", "500 bytes", "499 bytes"),)), {COMPLETE, PROVEN}),
        (replace(GOOD, unproven=("model-2.safetensors",)), {PROVEN}),
        (replace(GOOD, sealed=""), {PROVEN}),
        (replace(GOOD, sealed="of another manifest"), {PROVEN}),
        (replace(GOOD, free_bytes=999), {ROOM}),
    ],
)
def test_what_one_node_lacks_fails_the_check_and_says_what_to_do(peer: Report, failed: set[str]) -> None:
    found = asked(peer)
    assert {name for name, check in found.items() if not check.passed} == failed
    assert all(bool(found[name].remedy) == (name in failed) for name in found)


def test_little_room_is_only_a_warning() -> None:
    found = asked(replace(GOOD, free_bytes=0))
    assert [name for name, check in found.items() if check.is_warning] == [ROOM]
    assert "weights prune" in found[ROOM].remedy


def test_rates_are_of_the_work_that_was_done() -> None:
    node = NodeResult(
        "peer",
        copied_bytes=3_000_000,
        copy_seconds=1.5,
        verified_bytes=9_000_000,
        read_bytes=8_000_000,
        verify_seconds=2.0,
    )
    assert node.megabytes_per_second == {"copy": 2.0, "verify": 4.0}
