"""How fast a node proves its files: our program's `verify` with rehash against what the machine's SHA-256 can do.

    python benchmarks/weights_hashing.py [--shards 6] [--megabytes 600] [--rounds 3]

Everything in one run, on the same files, in the page cache before each measurement (ours gives its pages back). Real
shards have 3 to 5 GB; with less than a second of work the start of a process is what is measured:

- ours: the program as it is sent to a node, each file read and digested again; without the start of Python, which
  costs the same for 1 GB and for 120 (`inspect` measures it).
- openssl speed, one core and all (`-multi`): no file, nothing but the digest.
- huggingface_hub: `HfApi.verify_repo_checksums` (the work alone) and `hf cache verify` (the command), on a hub on
  loopback.

The bounds: ours >= 0.9 x cores x openssl on one core, and ours >= 0.9 x cores times as fast as `hf cache verify`;
`cores` is what the machine counts. The other ratios are printed beside them: where two cores are hardware threads of
one, openssl itself does not reach cores x one core, and "ours / openssl, all cores" tells what is left to win. Ratios
are taken within a round, where the machine is equally busy for all (wall time everywhere), and of these the median.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from huggingface_hub import HfApi

from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.lab.hub_server import HubServer
from spark_pipeline.lab.hub_store import move_branch
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import Report
from spark_pipeline.weights.node_program import call, request
from spark_pipeline.weights.revision import ask

BOUND = 0.9
REPO = "lab/hashing"
BLOCK_BYTES = 1 << 20
OPENSSL_SECONDS = 2


@dataclass(frozen=True)
class Node:
    """A model's directory on this machine, and the hub that knows what belongs to it."""

    endpoint: str
    weights_dir: Path
    manifest: Manifest

    @property
    def directory(self) -> Path:
        return self.weights_dir / REPO / self.manifest.commit

    def warm(self) -> None:
        """Have every page in the cache."""
        for file in self.manifest.files:
            with (self.directory / file.path).open("rb", buffering=0) as stream:
                buffer = bytearray(BLOCK_BYTES)
                while stream.readinto(buffer):
                    pass


@contextmanager
def node(folder: Path, shards: int, size_bytes: int) -> Iterator[Node]:
    """Random shards on a hub, and the same files (hard links: no room twice) in a model's directory."""
    commit = hashlib.sha1(os.urandom(20), usedforsecurity=False).hexdigest()
    published = folder / "hub" / REPO / commit
    directory = folder / "models" / REPO / commit
    published.mkdir(parents=True)
    directory.mkdir(parents=True)
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.bin"
        with (published / name).open("wb") as stream:
            for start in range(0, size_bytes, BLOCK_BYTES):
                stream.write(os.urandom(min(BLOCK_BYTES, size_bytes - start)))
            os.fsync(stream.fileno())
        os.link(published / name, directory / name)
    move_branch(folder / "hub", REPO, "main", commit)
    server = HubServer("127.0.0.1", 0, folder / "hub")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Node(server.endpoint, folder / "models", ask(Hub(server.endpoint), REPO, commit))
    finally:
        server.shutdown()
        server.server_close()


def ours(made: Node) -> None:
    report = _program(made, "verify", rehash=True)
    if report.hashed_bytes != made.manifest.size_bytes or report.unproven or report.set_aside:
        raise click.ClickException(f"not everything was proven: {report}")


def start_seconds(made: Node) -> float:
    """What the program costs when it has nothing to read."""
    started = time.monotonic()
    _program(made, "inspect")
    return time.monotonic() - started


def _program(made: Node, operation: str, **more: Any) -> Report:
    asked = request(operation, made.manifest, str(made.weights_dir), **more)
    return call(LocalHost("here"), asked, progress=click.echo)


def hub_client(made: Node) -> None:
    found = HfApi(endpoint=made.endpoint, token=False).verify_repo_checksums(
        REPO, revision=made.manifest.commit, local_dir=str(made.directory)
    )
    if found.checked_count != len(made.manifest.files) or found.mismatches:
        raise click.ClickException(f"huggingface_hub did not check it: {found}")


def hub_command(made: Node) -> None:
    command = [str(Path(sys.executable).with_name("hf")), "cache", "verify", REPO]
    command += ["--revision", made.manifest.commit, "--local-dir", str(made.directory)]
    environment = os.environ | {"HF_ENDPOINT": made.endpoint, "HF_HUB_DISABLE_TELEMETRY": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True)


def openssl(cores: int) -> float:
    """Bytes of SHA-256 a second, in blocks of 1 MB."""
    words = ["openssl", "speed", "-elapsed", "-seconds", str(OPENSSL_SECONDS), "-bytes", str(BLOCK_BYTES)]
    words += ["-multi", str(cores)] if cores > 1 else []
    done = subprocess.run([*words, "sha256"], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1].removesuffix("k")) * 1000


def rate(made: Node, work: Callable[[Node], None], *, less_seconds: float = 0.0) -> float:
    """Bytes a second, with every page in the cache at the start."""
    made.warm()
    started = time.monotonic()
    work(made)
    return made.manifest.size_bytes / (time.monotonic() - started - less_seconds)


def ratio(values: list[float], others: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


@click.command(help=__doc__)
@click.option("--shards", default=6, show_default=True)
@click.option("--megabytes", default=600, show_default=True, help="Size of each shard.")
@click.option("--rounds", default=3, show_default=True)
def main(shards: int, megabytes: int, rounds: int) -> None:
    cores = os.cpu_count() or 1
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, node(Path(folder), shards, megabytes * 1_000_000) as made:
        for _ in range(rounds):
            for name, measured in (
                ("openssl, one core", lambda: openssl(1)),
                (f"openssl, {cores} cores", lambda: openssl(cores)),
                ("ours", lambda: rate(made, ours, less_seconds=start_seconds(made))),
                ("huggingface_hub", lambda: rate(made, hub_client)),
                ("hf cache verify", lambda: rate(made, hub_command)),
            ):
                taken.setdefault(name, []).append(measured())
    for name, values in taken.items():
        told = ", ".join(f"{value / 1e9:.2f}" for value in values)
        click.echo(f"{name:20} median {statistics.median(values) / 1e9:5.2f} GB/s   ({told})")
    one, every, own, client, command = taken.values()
    bounds = {
        f"ours / (openssl, one core, x {cores})": (ratio(own, one) / cores, BOUND),
        "ours / hf cache verify": (ratio(own, command), BOUND * cores),
    }
    for what, (value, bound) in bounds.items():
        click.echo(f"{what:36}{value:5.2f} (bound {bound:.2f})")
    for what, value in {
        f"ours / openssl, {cores} cores": ratio(own, every),
        f"openssl, {cores} cores / one core": ratio(every, one),
        "ours / huggingface_hub": ratio(own, client),
    }.items():
        click.echo(f"{what:36}{value:5.2f}")
    raise SystemExit(0 if all(value >= bound for value, bound in bounds.values()) else 1)


if __name__ == "__main__":
    main()
