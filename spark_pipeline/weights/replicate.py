"""From the head to its peers, over the fabric, to all of them at once; only what a peer lacks travels.

The head serves its proven files on a port of its fabric address, for as long as the copy lasts and to whoever knows a
password that is made for it; every peer fetches in several streams and digests what comes while it comes
(docs/decisions/0012-http-then-rsync.md). A peer that cannot reach that port gets them by rsync (weights/rsync.py).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from spark_pipeline.errors import (
    CommandTimeoutError,
    HubError,
    LoginRefusedError,
    SparkPipelineError,
    UnreachableError,
    WeightsError,
)
from spark_pipeline.fleet.cancel import stop_if_cancelled
from spark_pipeline.fleet.fabric import prepare_fabric
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.parallel import each
from spark_pipeline.fleet.progress import Meter
from spark_pipeline.fleet.session import Session
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import Report, Source
from spark_pipeline.weights.node_program import call, request
from spark_pipeline.weights.plan import NodePlan
from spark_pipeline.weights.result import NodeResult
from spark_pipeline.weights.rsync import copy_by_rsync, did_not_get_through, places

FILES_AT_ONCE = 4  # to one peer
STALL_SECONDS = 20.0
# Whether the port answers at all, before anything waits for it: a firewall drops without a word.
_REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"
_REACH_SECONDS = 20.0
_GIVE = ""  # no node has this name: the head's part among those of the peers


@dataclass
class _Counter:
    """The head's side: where it listens, once it does."""

    address: str
    password: str = field(repr=False)
    listening: threading.Event = field(default_factory=threading.Event)
    port: int | None = None

    def source(self) -> Source:
        url = f"http://{self.address}:{self.port}"
        return Source(url, self.password, files_at_once=FILES_AT_ONCE, stall_seconds=STALL_SECONDS, direct=True)


def replicate(
    session: Session,
    manifest: Manifest,
    planned: Sequence[NodePlan],
    reports: Mapping[str, Report],
    *,
    is_first: bool = True,
) -> dict[str, NodeResult]:
    """Bring to every peer what it lacks, all peers at once.

    Args:
        planned: the peers that lack something.
        reports: what each node saw; says who has rsync.
        is_first: of this run's copies; what is missing for later steps was said by the first one.

    Raises:
        WeightsError: a copy did not get through.
        MachineError: a node could not be asked, or the fabric does not carry it.
    """
    session.guard()
    by_name = {node.node: node for node in planned}
    counter = _Counter(str(session.fleet.head.fabric), secrets.token_urlsafe(32))
    taken = places()

    def work(name: str) -> NodeResult:
        if name == _GIVE:
            return _give(session, manifest, counter, receivers=len(by_name))
        started = time.monotonic()
        while not counter.listening.wait(0.25):
            stop_if_cancelled()
        if counter.port is None:
            return NodeResult(name)  # the head says why
        host, node = session.connection.host(name), by_name[name]
        try:
            if obstacle := _obstacle(host, counter.address, counter.port):
                result = NodeResult(name, copied_bytes=_second_way(session, manifest, node, taken, obstacle, reports))
            else:
                if is_first:
                    _tell_missing_login(session, name)
                result = _take(session, manifest, host, node, counter)
        finally:
            # However it ended. Untold, the head waits for a sign of this peer for two minutes, and then ends by itself.
            with suppress(SparkPipelineError):
                asked = request("done", manifest, session.fleet.weights_dir, source=counter.source())
                call(session.head, asked, progress=session.progress)
        return replace(result, copy_seconds=time.monotonic() - started)

    done = each((_GIVE, *by_name), work)
    return {name: done[name] for name in by_name}


def _give(session: Session, manifest: Manifest, counter: _Counter, *, receivers: int) -> NodeResult:
    """The head serves until every peer has said that it is done."""

    def on_port(port: int) -> None:
        counter.port = port
        counter.listening.set()

    asked = request(
        "serve",
        manifest,
        session.fleet.weights_dir,
        source=Source("", counter.password, direct=True),
        listen_on=counter.address,
        receivers=receivers,
    )
    try:
        call(session.head, asked, progress=session.progress, on_port=on_port)
    finally:
        counter.listening.set()
    return NodeResult(_GIVE)


def _tell_missing_login(session: Session, peer: str) -> None:
    """The files travel without a login of the head at the peer; what needs one is told before the copy, not after. No
    error of that check is one of the copy."""
    try:
        prepare_fabric(session.connection, session.fleet, session.project.known_hosts, [session.fleet.node(peer)])
    except SparkPipelineError as error:
        observed = f" ({error.observed})" if error.observed else ""
        session.progress(
            f"[{peer}] {error.what}{observed}. The model's files need no login; an image will: {error.remedy}"
        )


def _take(session: Session, manifest: Manifest, host: Host, planned: NodePlan, counter: _Counter) -> NodeResult:
    """A peer fetches what it lacks, and digests it on the way."""
    meter = Meter(f"[{host.name}] copying {manifest.repo}", planned.bring_bytes, session.progress)
    asked = request("download", manifest, session.fleet.weights_dir, source=counter.source())
    try:
        report = call(host, asked, progress=session.progress, on_bytes=meter.set)
    except (HubError, CommandTimeoutError, UnreachableError) as error:
        # A peer behind the head goes silent with the fabric itself.
        raise did_not_get_through(session, host.name, f"{error.what}: {error.observed}") from error
    session.progress(meter.line())
    return NodeResult(
        host.name,
        copied_bytes=report.downloaded_bytes,
        verified_files=report.hashed_files,
        verified_bytes=sum(file.size_bytes for file in planned.bring),
        repaired=report.set_aside,
    )


def _obstacle(host: Host, address: str, port: int) -> str:
    """Why this peer cannot fetch from the head; '' when it can."""
    argv = ("python3", "-I", "-c", _REACH, address, str(port))
    done = host.run(argv, timeout=_REACH_SECONDS, check=False)
    if done.status == 0:
        return ""
    said = done.stderr.strip().splitlines()
    return f"{host.name} does not reach port {port} of {address}: {said[-1] if said else 'no answer'}"


def _second_way(
    session: Session,
    manifest: Manifest,
    planned: NodePlan,
    taken: threading.BoundedSemaphore,
    obstacle: str,
    reports: Mapping[str, Report],
) -> int:
    """rsync, where the first way is closed. That this one is closed too must not hide what closed the first."""
    name = planned.node
    without = [node for node in (session.fleet.head.name, name) if not reports[node].has_rsync]
    if without:
        raise WeightsError(
            "no way from the head to this node",
            node=name,
            observed=f"{obstacle}\nrsync is not installed on {' and '.join(without)}",
            remedy=f"open {session.fleet.head.fabric} to the fabric's other addresses, or: apt install rsync",
        )
    session.progress(f"[{name}] {obstacle}. Copying by rsync over ssh instead, which is slower")
    try:
        return copy_by_rsync(session, manifest, planned, taken)
    except LoginRefusedError as error:
        error.observed = f"{obstacle}\n{error.observed}"
        raise
    except SparkPipelineError as error:
        error.observed = f"{error.observed}\n{obstacle}"
        raise
