"""How fast weights go from the head to a peer, as a ratio against one `rsync -a -e ssh` of the same directory.

    python benchmarks/weights_replication.py [--deployment tiny] [--files 8] [--megabytes 128] [--rounds 3]

Needs a fleet of two nodes (`make demo`). Makes files on the head, in a revision of their own below weights_dir that is
removed at the end. Alternates in one run, the peer's directory emptied before each, the head's page cache warm:

- rsync: `rsync -a -e ssh` on the head to the peer's fabric address, one stream, nothing verified;
- replicate: `weights.replicate`, after which every file is proven on the peer.

The bound: rsync / replicate 1.5, where two cores allow it. What limits it is said: both ways share the cores of one
machine in the lab, where a fleet has a machine for each end.
"""

from __future__ import annotations

import json
import os
import statistics
import time

import click

from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.fleet.fabric import fabric_ssh, prepare_fabric
from spark_pipeline.fleet.host import shell_text
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
    """Nothing of it on the peer, everything of it in the head's page cache."""
    session.hosts[1].run(["rm", "-rf", directory(session)], timeout=LIMIT_SECONDS)
    session.head.run(["sh", "-c", 'cat "$1"/* >/dev/null', "sh", directory(session)], timeout=LIMIT_SECONDS)


def by_rsync(session: Session) -> float:
    emptied(session)
    peer = session.nodes[1]
    *ssh, destination = fabric_ssh(session.fleet, peer)
    # As typed by hand: OpenSSH's own choice of a cipher, not the faster one that the pipeline asks for.
    cipher = next(number for number, word in enumerate(ssh) if word.startswith("Ciphers="))
    del ssh[cipher - 1 : cipher + 1]
    place = directory(session)
    session.hosts[1].run(["mkdir", "-p", place], timeout=60)
    argv = ["rsync", "-a", "-e", shell_text(ssh), "--", f"{place}/", f"{destination}:{place}/"]
    started = time.monotonic()
    session.head.run(argv, timeout=LIMIT_SECONDS)
    return time.monotonic() - started


def by_us(session: Session, manifest: Manifest) -> float:
    emptied(session)
    started = time.monotonic()
    reports = observe(session, manifest)
    planned = plan(manifest, directory(session), reports)
    replicate(session, manifest, planned.peers, reports)
    seconds = time.monotonic() - started
    left = plan(manifest, directory(session), observe(session, manifest)).peers[0]
    if left.bring or left.prove:
        raise click.ClickException("not everything is proven on the peer")
    return seconds


def measure(session: Session, files: int, megabytes: int, rounds: int) -> tuple[float, float]:
    """Median seconds of rsync, and of ours."""
    prepare_fabric(session.connection, session.fleet, session.project.known_hosts, session.nodes[1:])
    manifest = made(session, files, megabytes)
    prove(session, manifest, plan(manifest, directory(session), observe(session, manifest)).nodes[:1])
    theirs: list[float] = []
    ours: list[float] = []
    for number in range(1, rounds + 1):
        theirs.append(by_rsync(session))
        ours.append(by_us(session, manifest))
        rates = [manifest.size_bytes / 1e6 / seconds for seconds in (theirs[-1], ours[-1])]
        click.echo(f"round {number}: rsync {theirs[-1]:5.2f} s ({rates[0]:.0f} MB/s)  ", nl=False)
        click.echo(f"replicate {ours[-1]:5.2f} s ({rates[1]:.0f} MB/s, proven)")
    return statistics.median(theirs), statistics.median(ours)


@click.command(help=__doc__)
@click.option("--deployment", default="tiny", show_default=True, help="Whose nodes take part.")
@click.option("--files", default=8, show_default=True)
@click.option("--megabytes", default=128, show_default=True, help="Size of each file.")
@click.option("--rounds", default=3, show_default=True)
def main(deployment: str, files: int, megabytes: int, rounds: int) -> None:
    project, run_id = Project.load(), f"benchmark-{os.getpid()}"
    try:
        with open_session(project, deployment, progress=lambda _: None, run_id=run_id) as session:
            try:
                rsync, ours = measure(session, files, megabytes, rounds)
            finally:
                found = list_revisions(session.project, session.fleet, session.connection)
                prune(session.fleet, session.connection, [one for one in found if one.repo == REPO], click.echo)
    except SparkPipelineError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"rsync / replicate = {rsync / ours:.2f} (bound {BOUND:.2f}); cores of this machine: {os.cpu_count()}")
    raise SystemExit(0 if rsync / ours >= BOUND else 1)


if __name__ == "__main__":
    main()
