"""From the hub to the head."""

from __future__ import annotations

import time

from spark_pipeline.errors import HubError
from spark_pipeline.fleet.progress import Meter
from spark_pipeline.fleet.session import Session
from spark_pipeline.weights.hub import GATED_REMEDY, Hub
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import Source
from spark_pipeline.weights.node_program import call, request
from spark_pipeline.weights.plan import NodePlan
from spark_pipeline.weights.result import NodeResult, Proof

STALL_SECONDS = 60.0  # without one new byte; then the connection is ended and another one goes on from there


def download(session: Session, manifest: Manifest, planned: NodePlan) -> Proof:
    """Bring what the head lacks. Files are digested on the way and get their name only when they are right.

    Raises:
        HubError: the hub refuses, or cannot be reached from the head.
        VerificationError: the hub sent wrong bytes twice.
        WeightsError: no room, or no right to write.
    """
    session.guard()
    started = time.monotonic()
    hub = Hub.of(session.deployment.model)
    head = session.head
    source = Source(hub.files_url(manifest.repo, manifest.commit), hub.token, stall_seconds=STALL_SECONDS)
    meter = Meter(f"[{head.name}] downloading {manifest.repo}", planned.bring_bytes, session.progress)
    asked = request("download", manifest, session.fleet.weights_dir, source=source)
    try:
        report = call(head, asked, progress=session.progress, on_bytes=meter.set)
    except HubError as error:
        if error.remedy == GATED_REMEDY:
            error.remedy = hub.advice(GATED_REMEDY)
        raise
    session.progress(meter.line())
    result = NodeResult(
        head.name,
        downloaded_bytes=report.downloaded_bytes,
        download_seconds=time.monotonic() - started,
        verified_files=report.hashed_files,
        verified_bytes=sum(file.size_bytes for file in planned.bring),
        repaired=report.set_aside,
    )
    return Proof(report, result)
