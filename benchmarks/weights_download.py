"""How fast a head fetches many shards, as ratios against huggingface_hub and the same repository on the same server.

    python benchmarks/weights_download.py [--shards 40] [--megabytes 8] [--rounds 5]

The lab's hub serves on loopback, in a process of its own. Alternates in one run, each into an empty directory, the
server's files in the page cache, eight files at once as both do by default:

- ours: the program as it is sent to a node, from its start to its end; every byte digested and on the disk (fsync);
- hf: `hf download --local-dir`, from its start to its end; nothing digested, nothing synced;
- snapshot: `snapshot_download` alone, in a process that has imported it: what `hf download` is without its start.

The bound: hf / ours 1.0. Then the same again with nothing to do: the stage must ask the hub once, for metadata. (Its
seconds are without the start of Python, those of `hf` with it.)
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.fleet.session import open_session
from spark_pipeline.lab.hub_server import ACCESS_LOG
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import stage
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import Source
from spark_pipeline.weights.node_program import call, request
from spark_pipeline.weights.revision import ask

BOUND = 1.0
REPO = "benchmark/download"
LIMIT_SECONDS = 600.0
_SNAPSHOT = """
import sys, time
from huggingface_hub import snapshot_download
started = time.monotonic()
snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3])
print(time.monotonic() - started)
"""


def quiet(_: str) -> None:
    """Progress that nobody reads."""


@contextmanager
def hub_process(root: Path) -> Iterator[str]:
    """Endpoint of a hub that shares no interpreter with those who are measured."""
    argv = [sys.executable, "-m", "spark_pipeline.lab.hub_server", "--port", "0", "--root", str(root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(",")[0].removeprefix("hub on ")
        finally:
            process.terminate()


class Contest:
    """One repository, and everybody's way to have it below `folder`."""

    def __init__(self, folder: Path, endpoint: str, manifest: Manifest) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.manifest = manifest
        self._environment = os.environ | {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(folder / "hf_home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        self._project = declare(folder / "project", endpoint, folder / "models")

    def ours(self, target: Path) -> float:
        """Seconds of the program on a node that is this machine."""
        source = Source(Hub(self.endpoint).files_url(REPO, self.manifest.commit))
        asked = request("download", self.manifest, str(target), source=source)
        return seconds(lambda: call(LocalHost("head"), asked, progress=quiet))

    def hf(self, target: Path) -> float:
        """Seconds of the command."""
        hf = str(Path(sys.executable).with_name("hf"))
        argv = [hf, "download", REPO, "--revision", self.manifest.commit, "--local-dir", str(target)]
        return seconds(lambda: self._run(argv))

    def snapshot(self, target: Path) -> float:
        """Seconds of its work alone."""
        return float(self._run([sys.executable, "-c", _SNAPSHOT, REPO, self.manifest.commit, str(target)]))

    def stage(self) -> float:
        """Seconds of stage model_weights on a fleet of this machine alone, as a run of its own."""

        def run() -> None:
            with open_session(self._project, "model", progress=quiet, run_id=str(time.monotonic_ns())) as session:
                stage.ensure(session)

        return seconds(run)

    def requests(self) -> list[str]:
        """What the hub was asked for since it was last asked this."""
        log = self.folder / "hub" / ACCESS_LOG
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return ["{method} {path}".format(**json.loads(line)) for line in lines]

    def _run(self, argv: list[str]) -> str:
        done = subprocess.run(
            argv, env=self._environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        if done.returncode != 0:
            raise click.ClickException(f"{argv[:2]} failed:\n{(done.stdout + done.stderr)[-2000:]}")
        return done.stdout


def seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def declare(root: Path, endpoint: str, weights_dir: Path) -> Project:
    """A project with one deployment on this machine."""
    for name in ("fleets", "deployments", "profiles"):
        (root / "data" / name).mkdir(parents=True)
    (root / "data" / "fleets" / "here.yaml").write_text(
        f"name: here\naccelerator: none\nweights_dir: {weights_dir}\n"
        "nodes: [{name: head, local: true, fabric: 127.0.0.1}]\n"
    )
    (root / "data" / "deployments" / "model.yaml").write_text(
        f"name: model\nfleet: here\nmodel: {{repo: {REPO}, hub_url: '{endpoint}'}}\n"
        "image: {candidates: [none]}\nserve: {served_name: model}\n"
    )
    return Project.load(root)


def race(contest: Contest, rounds: int) -> dict[str, float]:
    """Median seconds of each; who is first changes from round to round."""
    ways = {"ours": contest.ours, "hf": contest.hf, "snapshot": contest.snapshot}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            target = contest.folder / "target"
            taken[name].append(ways[name](target))
            arrived = sum(path.stat().st_size for path in target.rglob("*.safetensors"))
            shutil.rmtree(target)
            os.sync()  # what one left to be written does not slow down the next
            if arrived != contest.manifest.size_bytes:
                raise click.ClickException(f"{name} brought {arrived} of {contest.manifest.size_bytes} bytes")
        click.echo(f"round {number + 1}: " + ", ".join(f"{name} {values[-1]:.2f} s" for name, values in taken.items()))
    return {name: statistics.median(values) for name, values in taken.items()}


def nothing_to_do(contest: Contest, rounds: int) -> bool:
    """Whether a repeat of the stage asks the hub once, for metadata; says what it costs, and what `hf` needs for it."""
    target = contest.folder / "again"
    contest.stage()
    contest.hf(target)
    ways = {"ours": contest.stage, "hf": lambda: contest.hf(target)}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    asked: dict[str, list[str]] = {}
    contest.requests()
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(way())
            asked[name] = contest.requests()
    for name, values in taken.items():
        click.echo(f"nothing to do, {name}: {statistics.median(values):.2f} s, {len(asked[name])} requests")
    return [line.partition("?")[0] for line in asked["ours"]] == [f"GET /api/models/{REPO}/revision/main"]


def shard(number: int, size_bytes: int) -> bytes:
    """A safetensors file of random bytes, the same for the same number."""
    data_bytes = size_bytes - 8 - 64
    header = json.dumps({"a": {"dtype": "U8", "shape": [data_bytes], "data_offsets": [0, data_bytes]}}).ljust(64)
    return len(header).to_bytes(8, "little") + header.encode() + random.Random(number).randbytes(data_bytes)  # noqa: S311


@click.command(help=__doc__)
@click.option("--shards", default=40, show_default=True)
@click.option("--megabytes", default=8, show_default=True, help="Size of each.")
@click.option("--rounds", default=5, show_default=True)
def main(shards: int, megabytes: int, rounds: int) -> None:
    size_bytes = megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
        publish(folder / "hub", REPO, {path: shard(number, size_bytes) for number, path in enumerate(names)})
        try:
            with hub_process(folder / "hub") as endpoint:
                contest = Contest(folder, endpoint, ask(Hub(endpoint), REPO, "main"))
                taken = race(contest, rounds)
                is_one_call = nothing_to_do(contest, rounds)
        except SparkPipelineError as error:
            raise click.ClickException(str(error)) from error
    ratio, alone = taken["hf"] / taken["ours"], taken["snapshot"] / taken["ours"]
    click.echo(f"{shards} x {megabytes} MB: {shards * megabytes / taken['ours']:.0f} MB/s by ours")
    click.echo(f"hf download / ours = {ratio:.2f} (bound {BOUND:.2f}); snapshot_download alone / ours = {alone:.2f}")
    click.echo(f"nothing to do is one metadata call: {'yes' if is_one_call else 'no'}")
    raise SystemExit(0 if ratio >= BOUND and is_one_call else 1)


if __name__ == "__main__":
    main()
