"""The weights stage over two nodes: ssh, jump host, rsync over the fabric, a hub of its own on the lab's bridge."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spark_pipeline.errors import (
    HubError,
    LoginRefusedError,
    RevisionNotFoundError,
    SparkPipelineError,
    StateError,
    VerificationError,
    WeightsError,
)
from spark_pipeline.fleet import known_hosts
from spark_pipeline.fleet.session import open_session
from spark_pipeline.lab.hub_faults import Fault, write_faults
from spark_pipeline.lab.hub_server import ACCESS_LOG, HubServer
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.lab.lab import Lab
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import replicate, stage
from spark_pipeline.weights.record import read_record
from spark_pipeline.weights.result import WeightsResult

pytestmark = pytest.mark.lab

BOTH = ("head", "peer")
REPO = "lab/weights_test"
AWKWARD = ["a b.bin", "$(touch pwned).bin", "'q\".bin", "-rf.bin", "#c.bin", "sub dir/é%20?.bin", ";x"]


def safetensors(count: int) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return len(header).to_bytes(8, "little") + header + os.urandom(count)


FILES = {
    "config.json": b'{"architectures": ["X"]}',
    "model-1.safetensors": safetensors(3_000_000),
    "model-2.safetensors": safetensors(2_000_000),
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

    def log(self) -> list[dict[str, Any]]:
        log = self.hub.root / ACCESS_LOG
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def fetched(self) -> list[dict[str, Any]]:
        return [entry for entry in self.log() if "/resolve/" in entry["path"]]

    def resumed(self, path: str) -> list[dict[str, Any]]:
        """Requests for the rest of a file. (What a killed one had asked for is logged late: when sending fails.)"""
        return [entry for entry in self.fetched() if entry["path"].endswith(path) and entry["range"]]

    def sent_bytes(self) -> int:
        return sum(entry["sent_bytes"] for entry in self.fetched() if entry["status"] in (200, 206))

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

    def programs(self, node: str) -> list[str]:
        """Process ids on a node that hold a file of our directory open."""
        holds = 'ls -l "$p/fd" 2>/dev/null | grep -q -- "$1"'
        script = f'for p in /proc/[0-9]*; do if {holds}; then echo "${{p#/proc/}}"; fi; done'
        return self.on(node, script, self.weights_dir).split()


@pytest.fixture
def bench(lab: Lab, tmp_path: Path) -> Iterator[Bench]:
    hub = HubServer(str(lab.plan.host_address), 0, tmp_path / "hub")
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    weights_dir = f"/home/spark/weights test {uuid.uuid4().hex[:8]}"
    made = Bench(lab, hub, declare(lab, tmp_path / "project", hub.endpoint, weights_dir), weights_dir)
    yield made
    hub.shutdown()
    hub.server_close()
    for node in BOTH:
        made.on(node, 'umount "$1" 2>/dev/null; rm -rf -- "$1"', weights_dir)
    made.on("head", "rm -f /home/spark/.spark_pipeline/known_hosts_weights_lab")


def declare(lab: Lab, root: Path, hub_url: str, weights_dir: str) -> Project:
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


def test_the_head_downloads_the_peer_is_copied_to_and_both_are_proven(bench: Bench) -> None:
    commit = bench.publish(FILES)

    result = bench.ensure()

    head, peer = result.nodes
    assert result.changed
    assert result.record.commit == commit
    assert (head.downloaded_bytes, head.copied_bytes, head.verified_files) == (size(FILES), 0, 4)
    assert (peer.downloaded_bytes, peer.verified_files, peer.verified_bytes) == (0, 4, size(FILES))
    assert peer.copied_bytes == size(FILES)
    assert bench.sent_bytes() == size(FILES)
    for node in BOTH:
        assert bench.digests(node, result.record.directory) == expected(FILES)
        marker = json.loads(bench.on(node, 'cat "$1"', result.record.marker))
        assert (marker["commit"], marker["manifest_sha256"]) == (commit, result.record.manifest_sha256)


def test_a_repeat_fetches_copies_and_reads_nothing(bench: Bench) -> None:
    bench.publish(FILES)
    first = bench.ensure()
    before = {node: bench.on(node, 'find "$1" -printf "%p %i %T@ %C@\\n" | sort', bench.weights_dir) for node in BOTH}
    bench.forget()

    again = bench.ensure()

    assert not again.changed
    assert again.record == first.record
    assert [node.seconds for node in again.nodes] == [0, 0]
    assert [entry["path"] for entry in bench.log()] == [f"/api/models/{REPO}/revision/main?blobs=true"]
    for node in BOTH:
        assert bench.on(node, 'find "$1" -printf "%p %i %T@ %C@\\n" | sort', bench.weights_dir) == before[node]


def test_a_flipped_byte_on_the_peers_disk_is_repaired_and_only_that_file_travels(bench: Bench) -> None:
    bench.publish(FILES)
    record = bench.ensure().record
    flip = 'printf "\\377\\376" | dd of="$1" bs=1 seek=1000 conv=notrunc status=none && touch -r "$2" "$1"'
    bench.on("peer", flip, f"{record.directory}/model-1.safetensors", f"{record.directory}/config.json")
    bench.forget()

    result = bench.ensure()

    head, peer = result.nodes
    assert [bad.path for bad in peer.repaired] == ["model-1.safetensors"]
    assert peer.repaired[0].expected == f"sha256 {expected(FILES)['model-1.safetensors']}"
    assert peer.copied_bytes == len(FILES["model-1.safetensors"])
    assert head.seconds == 0
    assert bench.fetched() == []
    assert bench.digests("peer", record.directory) == expected(FILES)


def test_a_file_cut_short_with_its_old_mtime_is_repaired(bench: Bench) -> None:
    bench.publish(FILES)
    record = bench.ensure().record
    cut = 'cp -p "$1" /tmp/ref.$$ && truncate -s 999 "$1" && touch -r /tmp/ref.$$ "$1" && rm /tmp/ref.$$'
    for node in BOTH:
        bench.on(node, cut, f"{record.directory}/model-2.safetensors")
    bench.forget()

    bench.ensure()

    assert [entry["path"].rpartition("/")[2] for entry in bench.fetched()] == ["model-2.safetensors"]
    for node in BOTH:
        assert bench.digests(node, record.directory) == expected(FILES)


def test_names_that_a_shell_would_stumble_over_arrive_on_both(bench: Bench) -> None:
    files = {**FILES, **{name: name.encode() for name in AWKWARD}}
    bench.publish(files)

    record = bench.ensure().record

    for node in BOTH:
        assert bench.digests(node, record.directory) == expected(files)


def test_a_download_whose_program_is_killed_goes_on_from_that_byte(bench: Bench) -> None:
    bench.publish(FILES)
    bench.fault(Fault(kind="slow", path="model-1.safetensors", bytes_per_s=150_000))
    failed: list[SparkPipelineError] = []

    def run() -> None:
        with pytest.raises(SparkPipelineError) as caught:
            bench.ensure()
        failed.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    _wait_for(lambda: _part_size(bench) > 100_000)
    for pid in bench.programs("head"):
        bench.on("head", 'kill -9 "$1"', pid)
    thread.join(60)
    assert failed[0].node == "head"
    kept = _part_size(bench)
    bench.fault()
    bench.forget()

    record = bench.ensure().record

    (resumed,) = bench.resumed("model-1.safetensors")
    assert resumed["range"] == f"bytes={kept}-"
    assert resumed["sent_bytes"] == len(FILES["model-1.safetensors"]) - kept
    assert bench.digests("peer", record.directory) == expected(FILES)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_when_the_orchestrator_ends_the_heads_program_ends_and_the_next_run_goes_on(
    bench: Bench, how: signal.Signals
) -> None:
    bench.publish(FILES)
    bench.fault(Fault(kind="slow", path="*.safetensors", bytes_per_s=200_000))
    code = (
        "import sys; from pathlib import Path\n"
        "from spark_pipeline.fleet.session import open_session\n"
        "from spark_pipeline.spec.project import Project\n"
        "from spark_pipeline.weights import stage\n"
        "with open_session(Project.load(Path(sys.argv[1])), 'model', progress=print, run_id='r') as session:\n"
        "    stage.ensure(session)\n"
    )
    orchestrator = subprocess.Popen(
        [sys.executable, "-c", code, str(bench.project.root)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _wait_for(lambda: _part_size(bench) > 100_000)
    orchestrator.send_signal(how)
    orchestrator.wait()

    _wait_for(lambda: not bench.programs("head"))
    kept = _part_size(bench)
    bench.fault()
    bench.forget()
    bench.ensure()

    (resumed,) = bench.resumed("model-1.safetensors")
    assert resumed["range"] == f"bytes={kept}-"


def test_two_runs_at_once_fetch_once(bench: Bench) -> None:
    bench.publish(FILES)
    bench.fault(Fault(kind="slow", path="*.safetensors", bytes_per_s=1_000_000))
    results: list[WeightsResult] = []
    threads = [threading.Thread(target=lambda: results.append(bench.ensure())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert len(results) == 2
    assert bench.sent_bytes() == size(FILES)
    assert bench.digests("peer", results[0].record.directory) == expected(FILES)


def test_an_unknown_revision_ends_before_a_node_is_asked(bench: Bench) -> None:
    bench.publish(FILES)

    with pytest.raises(RevisionNotFoundError, match="has no revision 'nope'"):
        bench.ensure(revision="nope")

    assert bench.on("head", 'ls -d "$1" 2>/dev/null || true', bench.weights_dir) == ""


def test_a_gated_model_says_what_to_do_and_leaves_nothing_half_done(bench: Bench) -> None:
    bench.publish(FILES)
    bench.fault(Fault(kind="gated"))

    with pytest.raises(HubError) as caught:
        bench.ensure()

    assert caught.value.node == "head"
    assert "401" in caught.value.observed
    assert "HF_TOKEN" in caught.value.remedy
    assert bench.programs("head") == []


def test_a_token_opens_it_and_stays_out_of_sight_on_the_node(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.publish(FILES)
    monkeypatch.setenv("HF_TOKEN", "hf_sEcReT42")
    monkeypatch.setenv("HF_ENDPOINT", bench.hub.endpoint)  # plain http: only a hub that is named here is shown a token
    bench.fault(
        Fault(kind="gated", token="hf_sEcReT42"),
        Fault(kind="slow", path="model-1.safetensors", bytes_per_s=1_500_000),
    )
    thread = threading.Thread(target=bench.ensure)
    thread.start()
    _wait_for(lambda: _part_size(bench) > 100_000)
    look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c hf_sEcReT4[2] || true"
    seen_while_it_ran = bench.on("head", look).strip()
    thread.join(120)

    assert seen_while_it_ran == "0"
    assert bench.on("head", "grep -rl hf_sEcReT4[2] /home/spark /tmp || true") == ""
    assert "hf_sEcReT42" not in "\n".join(bench.said)


def test_a_small_disk_on_the_peer_is_found_before_the_first_byte(bench: Bench) -> None:
    bench.publish(FILES)
    _small_disk(bench, "peer", "2m")

    with pytest.raises(WeightsError, match="does not fit") as caught:
        bench.ensure()

    assert caught.value.node == "peer"
    assert re.search(r"needs 5\.\d MB, free 2\.\d MB, missing \d\.\d MB", caught.value.observed)
    assert bench.fetched() == []


def test_a_disk_that_fills_up_in_the_middle_is_named_and_the_next_run_goes_on(bench: Bench) -> None:
    bench.publish(FILES)
    _small_disk(bench, "head", "6m")
    bench.fault(Fault(kind="slow", path="model-1.safetensors", bytes_per_s=1_000_000))
    failed: list[WeightsError] = []

    def run() -> None:
        with pytest.raises(WeightsError) as caught:
            bench.ensure()
        failed.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    _wait_for(lambda: _part_size(bench) > 100_000)
    bench.on("head", 'head -c 2500000 /dev/zero >"$1/other" 2>/dev/null || true', bench.weights_dir)
    thread.join(60)
    assert "No space left" in failed[0].observed
    bench.on("head", 'rm "$1/other"', bench.weights_dir)
    bench.fault()

    record = bench.ensure().record

    assert bench.sent_bytes() < size(FILES) + 2_000_000
    assert bench.digests("head", record.directory) == expected(FILES)


def test_a_directory_of_somebody_else_is_named_with_its_owner(bench: Bench) -> None:
    bench.publish(FILES)
    bench.on("peer", 'mkdir -p "$1"', bench.weights_dir)

    with pytest.raises(WeightsError, match="may not be written") as caught:
        bench.ensure()

    assert caught.value.node == "peer"
    assert "belongs to root with mode 755; the pipeline logs in as spark" in caught.value.observed
    assert bench.fetched() == []


def test_a_symlink_in_the_way_is_refused(bench: Bench) -> None:
    commit = bench.publish(FILES)
    directory = f"{bench.weights_dir}/{REPO}/{commit}"
    bench.on("peer", 'mkdir -p "$1" && ln -s /etc/hostname "$1/config.json" && chown -R spark "$2"',
             directory, bench.weights_dir)  # fmt: skip

    with pytest.raises(WeightsError, match="stands where the model should lie") as caught:
        bench.ensure()

    assert "config.json is a symlink to /etc/hostname" in caught.value.observed
    assert bench.on("peer", "cat /etc/hostname") == "peer\n"


def test_bytes_that_the_hub_keeps_sending_wrong_never_reach_a_peer(bench: Bench) -> None:
    commit = bench.publish(FILES)
    bench.fault(Fault(kind="flip", path="model-2.safetensors"))

    with pytest.raises(VerificationError, match="came wrong twice"):
        bench.ensure()

    directory = f"{bench.weights_dir}/{REPO}/{commit}"
    assert bench.on("peer", 'ls "$1"', directory) == ""
    with open_session(bench.project, "model", progress=print, run_id="r") as session, pytest.raises(StateError):
        read_record(session)


def test_without_the_heads_login_the_copy_goes_by_http_over_the_fabric(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {**FILES, **{name: name.encode() for name in AWKWARD}}
    bench.publish(files)

    def refuse(*_: object) -> None:
        raise LoginRefusedError("head may not log in at spark@192.168.200.13", node="peer", remedy="ssh-copy-id it")

    monkeypatch.setattr(replicate, "prepare_fabric", refuse)

    result = bench.ensure()

    assert any("may not log in" in line and "ssh-copy-id" in line and "HTTP" in line for line in bench.said)
    assert result.nodes[1].copied_bytes == size(files)
    assert bench.digests("peer", result.record.directory) == expected(files)
    assert bench.programs("head") == []


def test_many_shards_travel_in_several_streams(bench: Bench) -> None:
    files = {f"model-{index}.bin": os.urandom(17_000_000) for index in range(4)}
    bench.publish(files)
    with open_session(bench.project, "model", progress=print, run_id="r") as session:
        planned = stage.plan(session)
    copies = [command for command in planned.commands if command.argv[0] == "rsync"]

    result = bench.ensure()

    assert len(copies) == 4
    assert result.nodes[1].copied_bytes == size(files)
    assert bench.digests("peer", result.record.directory) == expected(files)


def test_the_printed_copy_command_works_as_typed(bench: Bench) -> None:
    bench.publish(FILES)
    with open_session(bench.project, "model", progress=print, run_id="r") as session:
        (command,) = [one for one in stage.plan(session).commands if one.argv[0] == "rsync"]
    record = bench.ensure().record
    bench.on("peer", 'rm -- "$1/config.json"', record.directory)
    typed = f"printf './config.json\\0' | {shlex.join(command.argv)}"

    bench.on("head", 'su spark -c "$1"', f"cd; {typed}")

    assert bench.digests("peer", record.directory) == expected(FILES)


def _part_size(bench: Bench) -> int:
    """Bytes of model-1.safetensors that the head has so far, complete or not."""
    script = 'cat "$1"/*/*/*/.spark_pipeline/part/model-1.safetensors 2>/dev/null | wc -c'
    return int(bench.on("head", script, bench.weights_dir))


def _small_disk(bench: Bench, node: str, size_text: str) -> None:
    bench.on(node, 'mkdir -p "$1" && mount -t tmpfs -o size="$2",mode=1777 none "$1"', bench.weights_dir, size_text)


def _wait_for(is_so, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)
