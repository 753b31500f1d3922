"""One model on a hub of its own and one weights directory of its own on two nodes, for tests of the weights stage."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_pipeline.fleet import known_hosts
from spark_pipeline.fleet.session import open_session
from spark_pipeline.lab.hub_faults import Fault, FaultDesk, write_faults
from spark_pipeline.lab.hub_server import ACCESS_LOG, HubServer
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.network import NAMESPACES
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import stage
from spark_pipeline.weights.result import WeightsResult
from spark_pipeline_tests.lab.flipping_relay import FlippingRelay, relay_in

BOTH = ("head", "peer")
REPO = "lab/weights_test"


def safetensors(count: int, seed: int) -> bytes:
    """A file with one tensor of so many random bytes, the same for the same seed."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return len(header).to_bytes(8, "little") + header + random.Random(seed).randbytes(count)


FILES = {
    "config.json": b'{"architectures": ["X"]}',
    "model-1.safetensors": safetensors(3_000_000, seed=1),
    "model-2.safetensors": safetensors(2_000_000, seed=2),
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode(),
}


@dataclass
class Bench:
    """One model on its own hub, one weights directory of its own on both nodes."""

    lab: Lab
    hub: HubServer
    project: Project
    weights_dir: str
    said: list[str] = field(default_factory=list)

    def publish(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        return publish(self.hub.root, REPO, files, branch)

    def fault(self, *faults: Fault) -> None:
        write_faults(self.hub.root, faults)

    def ensure(self, **more: Any) -> WeightsResult:
        """As a run of its own: within one run a branch means the same commit all along."""
        run_id = uuid.uuid4().hex
        with open_session(self.project, "model", progress=self.said.append, run_id=run_id) as session:
            return stage.ensure(session, **more)

    def start(self) -> Future[WeightsResult]:
        """A run in another thread, so that the test can interfere."""
        pool = ThreadPoolExecutor(1)
        started = pool.submit(self.ensure)
        pool.shutdown(wait=False)
        return started

    def log(self) -> list[dict[str, Any]]:
        log = self.hub.root / ACCESS_LOG
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def fetched(self, path: str = "") -> list[dict[str, Any]]:
        return [entry for entry in self.log() if "/resolve/" in entry["path"] and entry["path"].endswith(path)]

    def resumed(self, path: str) -> list[dict[str, Any]]:
        """Requests for the rest of a file. (What a killed one had asked for is logged late: when sending fails.)"""
        return [entry for entry in self.fetched(path) if entry["range"]]

    def sent_bytes(self, path: str = "") -> int:
        return sum(entry["sent_bytes"] for entry in self.fetched(path) if entry["status"] in (200, 206))

    def forget(self) -> None:
        (self.hub.root / ACCESS_LOG).unlink(missing_ok=True)

    def on(self, node: str, script: str, *words: str, timeout: float = 60) -> str:
        """A line of shell as root on a node, with `$1` and so on; its output."""
        done = self.lab.run_in_node(node, ["sh", "-c", script, "sh", *words], timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def digests(self, node: str, directory: str) -> dict[str, str]:
        """Path -> sha256 as the node's own sha256sum says, of everything but our own corner."""
        script = 'cd "$1" && find . -path ./.spark_pipeline -prune -o -type f -print0 | xargs -0 sha256sum -z --'
        lines = self.on(node, script, directory).split("\0")[:-1]
        return {line[66:].removeprefix("./"): line[:64] for line in lines}

    def assert_proven(self, result: WeightsResult, files: Mapping[str, bytes] = FILES) -> None:
        """Both nodes hold these very bytes and nothing else, and the marker that says so."""
        for node in BOTH:
            assert self.digests(node, result.record.directory) == expected(files)
            marker = json.loads(self.on(node, 'cat "$1"', result.record.marker))
            assert marker["manifest_sha256"] == result.record.manifest_sha256

    def programs(self, node: str) -> list[str]:
        """Process ids on a node that hold a file of our directory open."""
        holds = 'ls -l "$p/fd" 2>/dev/null | grep -q -- "$1"'
        script = f'for p in /proc/[0-9]*; do if {holds}; then echo "${{p#/proc/}}"; fi; done'
        return self.on(node, script, self.weights_dir).split()

    def part_bytes(self) -> int:
        """Bytes of model-1.safetensors that the head has so far, as long as it is incomplete."""
        script = 'cat "$1"/*/*/*/.spark_pipeline/part/model-1.safetensors 2>/dev/null | wc -c'
        return int(self.on("head", script, self.weights_dir))

    def held_bytes(self, node: str) -> int:
        """Bytes of the model's files that a node has, complete or not, under whatever name they have meanwhile."""
        script = 'find "$1" -type f ! -path "*/.spark_pipeline/*" -printf "%s\\n" 2>/dev/null; '
        script += 'find "$1"/*/.spark_pipeline/part -type f -printf "%s\\n" 2>/dev/null || true'
        return sum(map(int, self.on(node, script, f"{self.weights_dir}/{REPO}").split()))

    @contextmanager
    def closed_ports(self) -> Iterator[None]:
        """A firewall on the head that drops every connection that the peer begins, without a word."""
        rule = ["-p", "tcp", "--syn", "-s", str(self.lab.plan.node(1).fabric), "-j", "DROP"]
        self.on("head", 'iptables -w -I INPUT "$@"', *rule)
        try:
            yield
        finally:
            self.on("head", 'iptables -w -D INPUT "$@"', *rule)

    @contextmanager
    def flipped_on_the_fabric(self, path: str, times: int) -> Iterator[FlippingRelay]:
        """One byte of one file is another one when it comes from the head to the peer, so many times. (ssh is left
        alone: it would notice.)"""
        node = self.lab.plan.node(0)
        with relay_in(NAMESPACES / node.namespace, FlippingRelay(path, times)) as relay:
            ends = ["-s", str(self.lab.plan.node(1).fabric), "-d", str(node.fabric)]
            rule = ["-p", "tcp", *ends, "!", "--dport", "22", "-j", "REDIRECT", "--to-ports", str(relay.port)]
            self.on("head", 'iptables -w -t nat -I PREROUTING "$@"', *rule)
            try:
                yield relay
            finally:
                self.on("head", 'iptables -w -t nat -D PREROUTING "$@"', *rule)

    @contextmanager
    def without_login(self) -> Iterator[None]:
        """The peer knows the head's own key no longer."""
        keys = "/home/spark/.ssh/authorized_keys"
        head_key = self.on("head", "cat /home/spark/.ssh/id_ed25519.pub").split()[1]
        kept = self.on("peer", f"cat {keys}")
        self.on("peer", f'grep -v -F -- "$1" {keys} > /tmp/keys && cat /tmp/keys > {keys}', head_key)
        try:
            yield
        finally:
            self.on("peer", f'printf %s "$1" > {keys}', kept)

    def cached_bytes(self, node: str, directory: str) -> int:
        """How much of a model's tensors is in the page cache, which this machine and its nodes share. Asked of the
        file system below the node's own: a newer fincore sees no page of an overlay."""
        here = self.lab.node(node).disk / "upper" / directory.lstrip("/")
        words = ["fincore", "--bytes", "--noheadings", "--output", "RES", *sorted(here.glob("*.safetensors"))]
        return sum(map(int, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()))

    def small_disk(self, node: str, size_text: str) -> None:
        """Let the weights directory be a disk of that size."""
        words = (self.weights_dir, size_text)
        self.on(node, 'mkdir -p "$1" && mount -t tmpfs -o size="$2",mode=1777 none "$1"', *words)

    def clean(self) -> None:
        """As if there had never been a run: nothing on the nodes, no state, a hub in good health."""
        self.fault()
        self.hub.faults = FaultDesk(self.hub.root)
        self.forget()
        self.said.clear()
        shutil.rmtree(self.project.state_dir("model"), ignore_errors=True)
        for node in BOTH:
            self.on(node, 'umount "$1" 2>/dev/null; rm -rf -- "$1"', self.weights_dir)


@contextmanager
def bench_on(lab: Lab, folder: Path) -> Iterator[Bench]:
    """A bench on the two nodes of a lab; nothing of it stays there."""
    hub = HubServer(str(lab.plan.host_address), 0, folder / "hub")
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    weights_dir = f"/home/spark/weights test {uuid.uuid4().hex[:8]}"
    made = Bench(lab, hub, declare(lab, folder / "project", hub.endpoint, weights_dir), weights_dir)
    try:
        yield made
    finally:
        hub.shutdown()
        hub.server_close()
        made.clean()
        made.on("head", "rm -f /home/spark/.spark_pipeline/known_hosts_weights_lab")


def declare(lab: Lab, root: Path, hub_url: str, weights_dir: str) -> Project:
    """A project with one deployment on the lab's first two nodes, their host keys pinned."""
    for folder in ("fleets", "deployments", "profiles"):
        (root / "data" / folder).mkdir(parents=True)
    (root / "data" / "fleets" / "weights_lab.yaml").write_text(
        f"""
name: weights_lab
accelerator: none
weights_dir: {weights_dir}
nodes:
  - name: head
    ssh: {{host: {lab.plan.node(0).management}, user: spark, key: {lab.paths.key}}}
    fabric: {lab.plan.node(0).fabric}
  - name: peer
    ssh: {{host: {lab.plan.node(1).fabric}, user: spark, key: {lab.paths.key}, via: head}}
    fabric: {lab.plan.node(1).fabric}
    internet: false
"""
    )
    (root / "data" / "deployments" / "model.yaml").write_text(
        f"""
name: model
fleet: weights_lab
model: {{repo: {REPO}, hub_url: "{hub_url}"}}
image: {{candidates: [none]}}
parallel: {{tensor: 2}}
serve: {{served_name: model}}
"""
    )
    project = Project.load(root)
    known_hosts.enroll(project.fleet("weights_lab"), project.known_hosts, lambda _: None)
    return project


def size(files: Mapping[str, bytes]) -> int:
    return sum(len(content) for content in files.values())


def expected(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}


def wait_for(is_so: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)
