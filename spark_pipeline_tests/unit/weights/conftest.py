"""A hub on loopback, and a node that is this machine: the real program on real files."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.host import Completed, Words
from spark_pipeline.fleet.progress import Progress
from spark_pipeline.fleet.session import Session
from spark_pipeline.lab.hub_faults import Fault, write_faults
from spark_pipeline.lab.hub_server import ACCESS_LOG, HubServer
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.node.main import run
from spark_pipeline.weights.node.messages import Report, Source
from spark_pipeline.weights.node_program import call, request
from spark_pipeline.weights.revision import ask

REPO = "lab/weights"


@dataclass
class LoopbackHub:
    """A hub with one repository, what goes wrong with it, and what it was asked for."""

    server: HubServer
    repo: str = REPO

    @property
    def url(self) -> str:
        return self.server.endpoint

    def publish(self, files: Mapping[str, bytes], branch: str = "main") -> Manifest:
        publish(self.server.root, self.repo, files, branch)
        return ask(Hub(self.url), self.repo, branch)

    def fault(self, *faults: Fault) -> None:
        write_faults(self.server.root, faults)

    def log(self) -> list[dict[str, Any]]:
        log = self.server.root / ACCESS_LOG
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def file_requests(self, path: str = "") -> list[dict[str, Any]]:
        return [entry for entry in self.log() if "/resolve/" in entry["path"] and entry["path"].endswith(path)]

    def sent_bytes(self, path: str = "") -> int:
        return sum(entry["sent_bytes"] for entry in self.file_requests(path) if entry["status"] in (200, 206))

    def forget(self) -> None:
        (self.server.root / ACCESS_LOG).unlink(missing_ok=True)


class InProcessHost:
    """Runs the node's program in this process: the same request in, the same lines out, without the half second that
    starting Python costs. Only for one call at a time; tests with two at once use LocalHost."""

    name = "head"

    def stream(self, argv: Words, *, on_line: Callable[[str], None], input: bytes, **_: Any) -> Completed:
        length, _newline, rest = input.partition(b"\n")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = run(rest[int(length) :])
        for line in said.getvalue().splitlines():
            on_line(line)
        return Completed(tuple(argv), status, "", "", 0.0)


@dataclass
class LocalNode:
    """One model's directory on this machine."""

    manifest: Manifest
    weights_dir: Path
    url: str
    host: Any = field(default_factory=InProcessHost)
    notes: list[str] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.weights_dir / self.manifest.repo / self.manifest.commit

    @property
    def marker(self) -> Path:
        return self.directory / ".spark_pipeline" / "complete.json"

    def do(self, operation: str, **more: Any) -> Report:
        asked = request(operation, self.manifest, str(self.weights_dir), **more)
        return call(self.host, asked, progress=self.notes.append)

    def download(self, *, token: str = "", url: str = "", stall_seconds: float = 60.0) -> Report:
        files_url = Hub(url or self.url).files_url(self.manifest.repo, self.manifest.commit)
        return self.do("download", source=Source(files_url, token, stall_seconds=stall_seconds))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    server = HubServer("127.0.0.1", 0, tmp_path / "hub")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield LoopbackHub(server)
    server.shutdown()
    server.server_close()


@pytest.fixture
def node_with(hub: LoopbackHub, tmp_path: Path):
    """Publish files, give the node that shall have them."""

    def make(files: Mapping[str, bytes]) -> LocalNode:
        manifest = hub.publish(files)
        hub.forget()
        return LocalNode(manifest, tmp_path / "models", hub.url)

    return make


@pytest.fixture
def node_of(tmp_path: Path):
    """A node that shall have a manifest's files, from nowhere."""
    return lambda manifest: LocalNode(manifest, tmp_path / "models", "")


@pytest.fixture
def manifest_of():
    """A manifest without any hub."""

    def make(files: Mapping[str, bytes], repo: str = REPO, commit: str = "c" * 40) -> Manifest:
        return Manifest(
            repo=repo,
            commit=commit,
            files=tuple(
                ManifestFile(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
                for path, content in sorted(files.items())
            ),
        )

    return make


def local_project(root: Path, hub: LoopbackHub) -> Project:
    """One deployment, `one`, of the hub's repository, on a fleet of this machine alone; weights below `root`/models."""
    data = root / "project" / "data"
    for folder in ("fleets", "deployments", "profiles"):
        (data / folder).mkdir(parents=True)
    (data / "fleets" / "here.yaml").write_text(
        f"name: here\naccelerator: none\nweights_dir: {root}/models\n"
        "nodes: [{name: head, local: true, fabric: 127.0.0.1}]\n"
    )
    (data / "deployments" / "one.yaml").write_text(
        f"name: one\nfleet: here\nmodel: {{repo: {hub.repo}, hub_url: '{hub.url}'}}\n"
        "image: {candidates: [none]}\nserve: {served_name: one}\n"
    )
    return Project.load(data.parent)


class _InProcessConnection(FleetConnection):
    """To a fleet of this machine alone: one node, so one call at a time."""

    def host(self, name: str) -> Any:
        return InProcessHost()


@contextmanager
def open_here(project: Project, *, progress: Progress = print, run_id: str = "run-1") -> Iterator[Session]:
    """Work on `one` of a `local_project`; the node's program runs in this process."""
    with _InProcessConnection(project.fleet("here"), project.known_hosts) as connection:
        yield Session(project, project.deployment("one"), connection, progress, run_id)
