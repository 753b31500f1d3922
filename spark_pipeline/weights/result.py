"""What `ensure` gives back, for tables and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from spark_pipeline.fleet.plan import StagePlan
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import BadFile, Report
from spark_pipeline.weights.record import WeightsRecord


@dataclass(frozen=True)
class NodeResult:
    """The work on one node; all zero when there was none.

    Args:
        verified_files, verified_bytes: digested on this node in this run, from disk or on the way in.
        read_bytes: of those, what was read from its disk, in `verify_seconds`.
        repaired: files that were wrong, set aside, and brought again.
    """

    node: str
    downloaded_bytes: int = 0
    download_seconds: float = 0.0
    copied_bytes: int = 0
    copy_seconds: float = 0.0
    verified_files: int = 0
    verified_bytes: int = 0
    read_bytes: int = 0
    verify_seconds: float = 0.0
    repaired: tuple[BadFile, ...] = ()

    @property
    def megabytes_per_second(self) -> dict[str, float]:
        """Rate of each kind of work that was done, in units of 10^6 bytes."""
        work = {
            "download": (self.downloaded_bytes, self.download_seconds),
            "copy": (self.copied_bytes, self.copy_seconds),
            "verify": (self.read_bytes, self.verify_seconds),
        }
        return {name: count / 1e6 / seconds for name, (count, seconds) in work.items() if count and seconds}

    @property
    def seconds(self) -> float:
        return self.download_seconds + self.copy_seconds + self.verify_seconds

    def __add__(self, other: NodeResult) -> NodeResult:
        """The work of two steps on the same node."""
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "node"}
        return NodeResult(self.node, **sums)


@dataclass(frozen=True)
class Proof:
    """How a node stands after a step that read files, and what that cost."""

    report: Report
    result: NodeResult


@dataclass(frozen=True)
class WeightsResult:
    """Proven weights on every node.

    Args:
        changed: False when everything was there already: nothing was fetched, copied or read.
        plan: what was found at the start, and what was done about it.
        page_url: the revision on the hub.
        nodes: in rank order.
        reports: node -> how its files stand after the work.
    """

    record: WeightsRecord
    changed: bool
    plan: StagePlan
    page_url: str
    nodes: tuple[NodeResult, ...]
    manifest: Manifest
    reports: Mapping[str, Report]
