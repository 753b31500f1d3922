"""Every node looks at, and reads, its own files."""

from __future__ import annotations

import time
from collections.abc import Sequence

from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import Meter
from spark_pipeline.fleet.session import Session
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import Report
from spark_pipeline.weights.node_program import call, request
from spark_pipeline.weights.plan import NodePlan
from spark_pipeline.weights.result import NodeResult, Proof


def observe(session: Session, manifest: Manifest, *, rehash: bool = False) -> dict[str, Report]:
    """One call and one stat a file on every node, all at once; nothing is read, nothing changes.

    `rehash`: nothing counts as proven.
    """
    asked = request("inspect", manifest, session.fleet.weights_dir, rehash=rehash)
    names = [node.name for node in session.nodes]
    return session.connection.each(names, lambda host: call(host, asked, progress=session.progress))


def prove(session: Session, manifest: Manifest, nodes: Sequence[NodePlan], *, rehash: bool = False) -> dict[str, Proof]:
    """Digest what is not proven on these nodes, with all their cores, all nodes at once; what is wrong is set aside."""
    session.guard()
    by_name = {node.node: node for node in nodes}
    asked = request("verify", manifest, session.fleet.weights_dir, rehash=rehash)

    def work(host: Host) -> Proof:
        started = time.monotonic()
        total = sum(file.size_bytes for file in by_name[host.name].prove)
        meter = Meter(f"[{host.name}] verifying {manifest.repo}", total, session.progress)
        report = call(host, asked, progress=session.progress, on_bytes=meter.set)
        for bad in report.set_aside:
            session.progress(f"[{host.name}] {bad.path} is wrong: expected {bad.expected}, got {bad.actual}; set aside")
        return Proof(report, _result(host.name, report, time.monotonic() - started))

    return session.connection.each(by_name, work)


def seal(session: Session, manifest: Manifest, names: Sequence[str]) -> dict[str, Report]:
    """Write the marker on these nodes: every file proven, index and shards agree. Raises VerificationError."""
    session.guard()
    asked = request("seal", manifest, session.fleet.weights_dir)
    return session.connection.each(names, lambda host: call(host, asked, progress=session.progress))


def _result(node: str, report: Report, seconds: float) -> NodeResult:
    return NodeResult(
        node,
        verified_files=report.hashed_files,
        verified_bytes=report.hashed_bytes,
        read_bytes=report.hashed_bytes,
        verify_seconds=seconds,
        repaired=report.set_aside,
    )
