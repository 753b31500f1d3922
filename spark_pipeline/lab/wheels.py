"""Python packages for the lab's images: fetched once on this machine, then served to the build on the head."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab.commands import environment
from spark_pipeline.lab.network import NAMESPACES
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import NodePlan
from spark_pipeline.lab.processes import tail
from spark_pipeline.lab.progress import Say, heartbeat

# On the head's loopback, during the build only. Fixed: it stands in the image's history.
WHEELS_PORT = 8097
WHEELS_URL = f"http://127.0.0.1:{WHEELS_PORT}/"
DOWNLOAD_LIMIT_S = 1800


@dataclass
class Download:
    """Wheels on their way; `wait` gives the folder once all are there."""

    folder: Path
    requirements: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def unfinished(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.unfinished")

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def wait(self, say: Say) -> Path:
        """Wait for the last wheel.

        Raises:
            LabError: pip failed, or the time is over; with its words.
        """
        if self.process is None:
            return self.folder
        wanted = sum(1 for line in self.requirements.read_text().splitlines() if "==" in line)
        deadline = time.monotonic() + DOWNLOAD_LIMIT_S
        with heartbeat(say, "fetching wheels") as beat:
            while self.process.poll() is None:
                if time.monotonic() > deadline:
                    self.process.kill()
                there = [wheel.stat().st_size for wheel in self.unfinished.glob("*.whl")]
                beat.doing = f"{len(there)} of {wanted}, {sum(there) / 1e6:.0f} MB"
                time.sleep(0.2)
        if self.process.returncode != 0:
            raise LabError(
                f"pip could not fetch the wheels of {self.requirements.parent.name}/{self.requirements.name}",
                observed=tail(self.log),
                remedy="torch 2.13.0+cpu is not on PyPI: set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels",
            )
        self.unfinished.rename(self.folder)
        wheels = list(self.folder.glob("*.whl"))
        say(f"{len(wheels)} wheels fetched, {sum(wheel.stat().st_size for wheel in wheels) / 1e6:.0f} MB")
        return self.folder


@contextmanager
def fetching(requirements: Path, paths: LabPaths, say: Say) -> Iterator[Download]:
    """Fetch every wheel of `requirements` in the background; nothing to do when this list was fetched before.

    pip's own settings (index, certificates, find-links) come from its environment, as for the user's pip.
    """
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    download = Download(paths.cache / "wheels" / digest, requirements)
    if download.folder.is_dir():
        yield download
        return
    shutil.rmtree(download.unfinished, ignore_errors=True)
    download.unfinished.mkdir(parents=True)
    # For the image's Python, whatever this machine's is; pinned and complete, so nothing is resolved.
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp"]
    command += ["--requirement", str(requirements), "--dest", str(download.unfinished)]
    say(f"fetching wheels of {requirements.parent.name}/{requirements.name} with pip, in the background")
    with download.log.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment()
        )
    download.process = process
    try:
        yield download
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(download.unfinished, ignore_errors=True)


@contextmanager
def served(folder: Path, node: NodePlan) -> Iterator[str]:
    """Serve a folder on the node's own loopback while the block runs: the URL for pip's --find-links.

    The process lives in the node's network namespace only, so no firewall of this machine and no other node sees it.
    """
    enter = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={NAMESPACES / node.namespace}"]
    server = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder)]
    process = subprocess.Popen(
        [*enter, *server, str(WHEELS_PORT)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
        text=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("Serving HTTP"):
            raise LabError(
                "the wheels cannot be served to the build",
                node=node.name,
                observed=f"port {WHEELS_PORT} of the node's loopback is taken, or its namespace is gone",
                remedy="spark-pipeline lab down, then spark-pipeline lab up",
            )
        yield WHEELS_URL
    finally:
        process.kill()
        process.wait()
