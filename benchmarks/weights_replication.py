"""How fast weights go from the head to a peer, as a ratio against one `rsync -a -e ssh` of the same directory.

    python benchmarks/weights_replication.py [--deployment tiny] [--files 8] [--megabytes 512] [--rounds 3]

Needs a fleet of two nodes (`make demo`). Makes files on the head, in a revision of their own below weights_dir that is
removed at the end (4 GB: of a copy of 1 GB the start of the programs is half). Alternates in one run, the peer's
directory emptied before each, the head's page cache warm:

- rsync: `rsync -a -e ssh` on the head to the peer's fabric address, one stream, nothing verified;
- replicate: `weights.replicate`, after which every file is proven on the peer.

The bound: rsync / replicate 1.5, where two cores allow it. What limits each way is said beside it: how busy the cores
of head and peer were, and what the peer's disk was given. In the lab both are this one machine, whose cores do the
work of both ends; on a fleet each end has its own.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.fleet.fabric import fabric_ssh, prepare_fabric
from spark_pipeline.fleet.host import Host, shell_text
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.inventory import list_revisions, prune
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.plan import plan
from spark_pipeline.weights.replicate import replicate
from spark_pipeline.weights.verify import observe, prove

BOUND = 1.5
REPO, COMMIT = "benchmark/replication", "b" * 40
LIMIT_SECONDS = 900.0
_MAKE = """
import hashlib, json, os, sys
directory, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(directory, exist_ok=True)
found = {}
for number in range(count):
    content = os.urandom(size)
    with open(os.path.join(directory, f"model-{number}.bin"), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    found[f"model-{number}.bin"] = hashlib.sha256(content).hexdigest()
print(json.dumps(found))
"""


def made(session: Session, files: int, megabytes: int) -> Manifest:
    """Random files on the head, and what a hub would list of them."""
    size = megabytes * 1_000_000
    argv = ["python3", "-c", _MAKE, directory(session), str(files), str(size)]
    digests = json.loads(session.head.run(argv, timeout=LIMIT_SECONDS).stdout)
    listed = tuple(ManifestFile(path=path, size_bytes=size, sha256=digest) for path, digest in digests.items())
    return Manifest(repo=REPO, commit=COMMIT, files=listed)


def directory(session: Session) -> str:
    return f"{session.fleet.weights_dir}/{REPO}/{COMMIT}"


def emptied(session: Session) -> None:
    """Nothing of it on the peer but an empty directory, everything of it in the head's page cache."""
    again = ["sh", "-c", 'rm -rf -- "$1" && mkdir -p -- "$1"', "sh", directory(session)]
    session.hosts[1].run(again, timeout=LIMIT_SECONDS)
    session.head.run(["sh", "-c", 'cat "$1"/* >/dev/null', "sh", directory(session)], timeout=LIMIT_SECONDS)


@dataclass(frozen=True)
class Ticks:
    """A node's counters since it was switched on; differences of two mean something."""

    busy: int
    all: int
    written_bytes: int

    @classmethod
    def of(cls, host: Host) -> Ticks:
        """Of all its cores, in clock ticks, and all its disks."""
        said = host.run(["cat", "/proc/stat", "/proc/vmstat"], timeout=60).stdout
        rows = {name: rest for name, _, rest in (line.partition(" ") for line in said.splitlines())}
        user, nice, system, idle, iowait, *others = map(int, rows["cpu"].split()[:8])  # then guests, counted before
        busy = user + nice + system + sum(others)
        return cls(busy, busy + idle + iowait, int(rows["pgpgout"]) * 1024)

    def __sub__(self, before: Ticks) -> Ticks:
        return Ticks(self.busy - before.busy, self.all - before.all, self.written_bytes - before.written_bytes)

    @property
    def busy_share(self) -> float:
        return self.busy / max(self.all, 1)


@dataclass(frozen=True)
class Copy:
    """One copy, and what the nodes did meanwhile."""

    seconds: float
    head: Ticks
    peer: Ticks


def copied(session: Session, work: Callable[[], object]) -> Copy:
    """Time it, and look at both nodes' counters before and after. What the kernel has not written yet at the end is
    not in them: a rate far below the copy's says that the disk was not waited for."""
    emptied(session)
    before = [Ticks.of(host) for host in session.hosts[:2]]
    started = time.monotonic()
    work()
    seconds = time.monotonic() - started
    head, peer = (Ticks.of(host) - then for host, then in zip(session.hosts[:2], before, strict=True))
    return Copy(seconds, head, peer)


def limits(name: str, copies: Sequence[Copy]) -> str:
    """What they were busy with, in one line, of medians."""
    head = statistics.median(copy.head.busy_share for copy in copies)
    peer = statistics.median(copy.peer.busy_share for copy in copies)
    disk = statistics.median(copy.peer.written_bytes / copy.seconds for copy in copies)
    return (
        f"{name}: cores busy {head:.0%} at the head, {peer:.0%} at the peer; the peer's disk got {disk / 1e6:.0f} MB/s"
    )


def by_rsync(session: Session) -> Copy:
    peer = session.nodes[1]
    *ssh, destination = fabric_ssh(session.fleet, peer)
    # As typed by hand: OpenSSH's own choice of a cipher, not the faster one that the pipeline asks for.
    cipher = next(number for number, word in enumerate(ssh) if word.startswith("Ciphers="))
    del ssh[cipher - 1 : cipher + 1]
    place = directory(session)
    argv = ["rsync", "-a", "-e", shell_text(ssh), "--", f"{place}/", f"{destination}:{place}/"]
    return copied(session, lambda: session.head.run(argv, timeout=LIMIT_SECONDS))


def by_us(session: Session, manifest: Manifest) -> Copy:
    def work() -> None:
        reports = observe(session, manifest)
        planned = plan(manifest, directory(session), reports)
        replicate(session, manifest, planned.peers, reports)

    copy = copied(session, work)
    left = plan(manifest, directory(session), observe(session, manifest)).peers[0]
    if left.bring or left.prove:
        raise click.ClickException("not everything is proven on the peer")
    return copy


def measure(session: Session, files: int, megabytes: int, rounds: int) -> tuple[list[Copy], list[Copy]]:
    """By rsync, and by us."""
    prepare_fabric(session.connection, session.fleet, session.project.known_hosts, session.nodes[1:])
    manifest = made(session, files, megabytes)
    prove(session, manifest, plan(manifest, directory(session), observe(session, manifest)).nodes[:1])
    theirs: list[Copy] = []
    ours: list[Copy] = []
    for number in range(1, rounds + 1):
        theirs.append(by_rsync(session))
        ours.append(by_us(session, manifest))
        seconds = theirs[-1].seconds, ours[-1].seconds
        rates = [manifest.size_bytes / 1e6 / one for one in seconds]
        click.echo(f"round {number}: rsync {seconds[0]:5.2f} s ({rates[0]:.0f} MB/s)  ", nl=False)
        click.echo(f"replicate {seconds[1]:5.2f} s ({rates[1]:.0f} MB/s, proven)")
    return theirs, ours


@click.command(help=__doc__)
@click.option("--deployment", default="tiny", show_default=True, help="Whose nodes take part.")
@click.option("--files", default=8, show_default=True)
@click.option("--megabytes", default=512, show_default=True, help="Size of each file.")
@click.option("--rounds", default=3, show_default=True)
def main(deployment: str, files: int, megabytes: int, rounds: int) -> None:
    project, run_id = Project.load(), f"benchmark-{os.getpid()}"
    try:
        with open_session(project, deployment, progress=lambda _: None, run_id=run_id) as session:
            try:
                theirs, ours = measure(session, files, megabytes, rounds)
            finally:
                found = list_revisions(session.project, session.fleet, session.connection)
                prune(session.fleet, session.connection, [one for one in found if one.repo == REPO], click.echo)
    except SparkPipelineError as error:
        raise click.ClickException(str(error)) from error
    click.echo(limits("rsync", theirs))
    click.echo(limits("replicate", ours))
    ratio = statistics.median(copy.seconds for copy in theirs) / statistics.median(copy.seconds for copy in ours)
    click.echo(f"rsync / replicate = {ratio:.2f} (bound {BOUND:.2f}); cores of this machine: {os.cpu_count()}")
    raise SystemExit(0 if ratio >= BOUND else 1)


if __name__ == "__main__":
    main()
