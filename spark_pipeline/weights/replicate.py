"""From the head to its peers, over the fabric; only what a peer lacks travels.

rsync over the head's own ssh login, several streams at once: one stream is bound by one core's encryption. Without
that login, or without rsync, the head hands the files over by HTTP (weights/node/serve.py).
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from spark_pipeline.errors import HubError, LoginRefusedError, WeightsError
from spark_pipeline.fleet.cancel import stop_if_cancelled
from spark_pipeline.fleet.fabric import fabric_ssh, prepare_fabric
from spark_pipeline.fleet.host import Words, shell_text
from spark_pipeline.fleet.parallel import each
from spark_pipeline.fleet.progress import Meter
from spark_pipeline.fleet.session import Session
from spark_pipeline.spec.fleet import Fleet, Node
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import Report, Source, WantedFile
from spark_pipeline.weights.node_program import WORK_SECONDS, call, request
from spark_pipeline.weights.plan import NodePlan
from spark_pipeline.weights.result import NodeResult

STREAMS = 4  # to one peer
HEAD_STREAMS = 5  # to all peers: each is a session of the head's ssh server, and others want some for hours too
SMALL_BYTES = 64_000_000  # less than this is not worth a second login
ATTEMPTS = 3
PAUSE_SECONDS = 5.0
# Socket, protocol stream, time-outs, ssh itself (rsync(1), EXIT VALUES): the link, not the files.
_LINK_STATUSES = (10, 12, 30, 35, 255)
_DONE = re.compile(r"\s*(\d+)\s+\d+%")
_SENT = re.compile(r"Literal data: (\d+) bytes")


def rsync_command(fleet: Fleet, peer: Node, directory: str) -> tuple[str, ...]:
    """The words that, run on the head with the files' names on standard input, bring them to `peer`.

    Plain files with their times and nothing else; a name may hold anything (with --protect-args no shell on the peer
    reads it). Which files travel was decided by digest, so rsync's own guess by size and time is off. Interrupted,
    what has arrived is kept aside and is the base of the next attempt.
    """
    *ssh, destination = fabric_ssh(fleet, peer)
    return (
        "rsync",
        *("--files-from=-", "--from0", "--protect-args", "--times", "--ignore-times"),
        *("--partial-dir=.spark_pipeline-partial", "--timeout=60"),
        *("--no-human-readable", "--info=progress2", "--stats"),
        *("-e", shell_text(ssh)),
        *("--", f"{directory}/", f"{destination}:{directory}/"),
    )


def names_on_input(files: Sequence[WantedFile]) -> bytes:
    """For --from0 --files-from=-. `./` in front: rsync takes a leading # or ; for a comment, even here."""
    return b"".join(b"./" + file.path.encode() + b"\0" for file in files)


def streams(files: Sequence[WantedFile]) -> tuple[tuple[WantedFile, ...], ...]:
    """The files in at most STREAMS shares of about the same size: the largest first, each to the smallest share."""
    count = 1 if sum(file.size_bytes for file in files) < SMALL_BYTES else min(STREAMS, len(files))
    shares: list[list[WantedFile]] = [[] for _ in range(count)]
    for file in sorted(files, key=lambda file: -file.size_bytes):
        min(shares, key=lambda share: sum(one.size_bytes for one in share)).append(file)
    return tuple(tuple(share) for share in shares)


def replicate(
    session: Session, manifest: Manifest, planned: Sequence[NodePlan], reports: Mapping[str, Report]
) -> dict[str, NodeResult]:
    """Bring to every peer what it lacks, all peers at once.

    Args:
        planned: the peers that lack something.
        reports: what each node saw; says who has rsync.

    Raises:
        WeightsError: a copy did not get through.
        MachineError: the fabric does not carry it.
    """
    by_name = {node.node: node for node in planned}
    places = threading.BoundedSemaphore(HEAD_STREAMS)

    def work(name: str) -> NodeResult:
        started = time.monotonic()
        node = by_name[name]
        obstacle = _no_rsync(session, name, reports)
        if obstacle:
            session.progress(f"[{name}] {obstacle}. Copying by HTTP over the fabric instead")
            copied = _hand_over(session, manifest, node, places)
        else:
            copied = _rsync(session, manifest, node, places)
        return NodeResult(name, copied_bytes=copied, copy_seconds=time.monotonic() - started)

    return each(by_name, work)


@contextmanager
def _one_of(places: threading.BoundedSemaphore) -> Iterator[None]:
    """Wait for a place, and keep it for a block. The waiting is given up as a command is."""
    while not places.acquire(timeout=0.25):
        stop_if_cancelled()
    try:
        yield
    finally:
        places.release()


def _no_rsync(session: Session, name: str, reports: Mapping[str, Report]) -> str:
    """Why rsync cannot do it; '' when it can."""
    without = [node for node in (session.fleet.head.name, name) if not reports[node].has_rsync]
    if without:
        return f"rsync is not installed on {' and '.join(without)} (apt install rsync)"
    try:
        prepare_fabric(session.connection, session.fleet, session.project.known_hosts, [session.fleet.node(name)])
    except LoginRefusedError as error:
        return f"{error.what}. To have it: {error.remedy}"
    return ""


def _rsync(session: Session, manifest: Manifest, planned: NodePlan, places: threading.BoundedSemaphore) -> int:
    directory = f"{session.fleet.weights_dir}/{manifest.repo}/{manifest.commit}"
    argv = rsync_command(session.fleet, session.fleet.node(planned.node), directory)
    meter = Meter(f"[{planned.node}] copying {manifest.repo}", planned.bring_bytes, session.progress)
    shares = streams(planned.bring)
    done = [0] * len(shares)

    def send(index: int) -> int:
        sent: list[int] = []

        def on_line(line: str) -> None:
            if match := _DONE.match(line):
                done[index] = int(match[1])
                meter.set(sum(done))
            elif match := _SENT.match(line):
                sent.append(int(match[1]))

        _send(session, planned.node, argv, names_on_input(shares[index]), on_line, places)
        return sum(sent)

    copied = sum(each(range(len(shares)), send).values())
    session.progress(meter.line())
    return copied


def _send(
    session: Session,
    peer: str,
    argv: Words,
    names: bytes,
    on_line: Callable[[str], None],
    places: threading.BoundedSemaphore,
) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        with _one_of(places):
            done = session.head.stream(argv, on_line=on_line, input=names, timeout=WORK_SECONDS, check=False)
        if done.status == 0:
            return
        said = done.stderr.strip()[-1500:]
        if done.status not in _LINK_STATUSES or attempt == ATTEMPTS:
            raise _broken(session, peer, f"rsync ended with status {done.status}: {said or 'it printed nothing'}")
        session.progress(f"[{peer}] the copy broke (status {done.status}: {said}); again in {PAUSE_SECONDS:.0f} s")
        time.sleep(PAUSE_SECONDS)


def _broken(session: Session, peer: str, observed: str) -> WeightsError:
    return WeightsError(
        f"copying from {session.head.name} over the fabric did not get through",
        node=peer,
        observed=observed,
        remedy="see that the fabric is up on both ends and the disk has room; the next run goes on from here",
    )


def _hand_over(session: Session, manifest: Manifest, planned: NodePlan, places: threading.BoundedSemaphore) -> int:
    """The head serves, the peer fetches, with a password that lives as long as this copy."""
    fleet, weights_dir = session.fleet, session.fleet.weights_dir
    password = secrets.token_urlsafe(32)
    address = str(fleet.head.fabric)
    meter = Meter(f"[{planned.node}] copying {manifest.repo}", planned.bring_bytes, session.progress)
    listening = threading.Event()
    ports: list[int] = []

    def on_port(port: int) -> None:
        ports.append(port)
        listening.set()

    def give(_: str) -> int:
        asked = request("serve", manifest, weights_dir, source=Source("", password), listen_on=address)
        try:
            with _one_of(places):
                call(session.head, asked, progress=session.progress, on_port=on_port)
        finally:
            listening.set()
        return 0

    def take(name: str) -> int:
        listening.wait()
        if not ports:
            return 0  # `give` says why
        source = Source(f"http://{address}:{ports[0]}", password, files_at_once=STREAMS, stall_seconds=20.0)
        asked = request("download", manifest, weights_dir, source=source, listen_on=address)
        host = session.connection.host(name)
        try:
            return call(host, asked, progress=session.progress, on_bytes=meter.set).downloaded_bytes
        except HubError as error:
            raise _broken(session, name, f"by HTTP: {error.what}: {error.observed}") from error

    return sum(each((give, take), lambda side: side(planned.node)).values())
