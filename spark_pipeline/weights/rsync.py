"""The slower way from the head to a peer: rsync over the head's own ssh login, several streams at once.

For where the peer cannot reach the head's port on the fabric, such as behind a firewall. One stream is bound by one
core's encryption, and what came must be read once more to be proven.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from spark_pipeline.errors import WeightsError
from spark_pipeline.fleet.cancel import stop_if_cancelled
from spark_pipeline.fleet.fabric import fabric_ssh, prepare_fabric
from spark_pipeline.fleet.host import Words, shell_text
from spark_pipeline.fleet.parallel import each
from spark_pipeline.fleet.progress import Meter
from spark_pipeline.fleet.session import Session
from spark_pipeline.spec.fleet import Fleet, Node
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import WantedFile
from spark_pipeline.weights.node_program import WORK_SECONDS
from spark_pipeline.weights.plan import NodePlan

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
    sizes = [0] * count
    for file in sorted(files, key=lambda file: -file.size_bytes):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(file)
        sizes[smallest] += file.size_bytes
    return tuple(tuple(share) for share in shares)


def places() -> threading.BoundedSemaphore:
    """For all copies that go on at once: how many of the head's sessions they may take."""
    return threading.BoundedSemaphore(HEAD_STREAMS)


def copy_by_rsync(session: Session, manifest: Manifest, planned: NodePlan, taken: threading.BoundedSemaphore) -> int:
    """Bring to one peer what it lacks; how many bytes went.

    Args:
        taken: see `places`.

    Raises:
        LoginRefusedError: the head's own key does not open the peer.
        WeightsError: the copy did not get through.
        MachineError: the fabric does not carry it.
    """
    prepare_fabric(session.connection, session.fleet, session.project.known_hosts, [session.fleet.node(planned.node)])
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

        _send(session, planned.node, argv, names_on_input(shares[index]), on_line, taken)
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
    taken: threading.BoundedSemaphore,
) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        with _one_of(taken):
            done = session.head.stream(argv, on_line=on_line, input=names, timeout=WORK_SECONDS, check=False)
        if done.status == 0:
            return
        said = done.stderr.strip()[-1500:]
        if done.status not in _LINK_STATUSES or attempt == ATTEMPTS:
            raise did_not_get_through(
                session, peer, f"rsync ended with status {done.status}: {said or 'it printed nothing'}"
            )
        session.progress(f"[{peer}] the copy broke (status {done.status}: {said}); again in {PAUSE_SECONDS:.0f} s")
        time.sleep(PAUSE_SECONDS)


def did_not_get_through(session: Session, peer: str, observed: str) -> WeightsError:
    """The error of both ways."""
    return WeightsError(
        f"copying from {session.head.name} over the fabric did not get through",
        node=peer,
        observed=observed,
        remedy="see that the fabric is up on both ends and the disk has room; the next run goes on from here",
    )


@contextmanager
def _one_of(places: threading.BoundedSemaphore) -> Iterator[None]:
    """Wait for a place, and keep it for a block. The waiting is given up as a command is."""
    while not places.acquire(timeout=0.25):
        stop_if_cancelled()
    try:
        yield
    finally:
        places.release()
