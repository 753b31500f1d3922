"""What must be true of a model's files on every node, as the nodes themselves reported it last: pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.weights.result import WeightsResult


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    Args:
        is_warning: it does not hold, and nothing is broken by that yet.
        findings: node -> what was seen there, for every node.
        remedy: what to do where it does not hold; '' where it does.
    """

    name: str
    passed: bool
    findings: dict[str, str]
    is_warning: bool = False
    remedy: str = ""


COMPLETE = "manifest_complete"
PROVEN = "hashes_on_every_node"
ROOM = "free_space"


def checks(result: WeightsResult) -> tuple[Check, ...]:
    """Every file is there; every file was read and is right, and the marker says so; another revision would fit."""
    manifest = result.manifest
    total = len(manifest.files)
    lacking = {name: len(report.absent) + len(report.bad) for name, report in result.reports.items()}
    sealed = {name: report.sealed == manifest.sha256 for name, report in result.reports.items()}
    unproven = {name: len(report.unproven) for name, report in result.reports.items()}
    proven = {name: sealed[name] and not unproven[name] and not lacking[name] for name in result.reports}
    room = {name: report.free_bytes >= manifest.size_bytes for name, report in result.reports.items()}
    return (
        Check(
            COMPLETE,
            not any(lacking.values()),
            {name: f"{total - count} of {total} files" for name, count in lacking.items()},
            remedy="materialize model_weights again: only what is missing travels" if any(lacking.values()) else "",
        ),
        Check(
            PROVEN,
            all(proven.values()),
            {
                name: f"{total - unproven[name]} of {total} files read and right, "
                + ("marked complete" if sealed[name] else "not marked complete")
                for name in result.reports
            },
            remedy="" if all(proven.values()) else "materialize model_weights with rehash",
        ),
        Check(
            ROOM,
            all(room.values()),
            {
                name: f"{human_bytes(report.free_bytes)} free, {human_bytes(manifest.size_bytes)} for another revision"
                for name, report in result.reports.items()
            },
            is_warning=True,
            remedy="" if all(room.values()) else "the next revision will not fit: spark-pipeline weights prune",
        ),
    )
