"""The weights stage over two nodes: ssh, jump host, the fabric, a hub of its own on the lab's bridge."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_pipeline.cli import main
from spark_pipeline.errors import (
    HubError,
    LoginRefusedError,
    NoRoomError,
    RevisionNotFoundError,
    SparkPipelineError,
    StateError,
    VerificationError,
    WeightsError,
)
from spark_pipeline.fleet.fabric import prepare_fabric
from spark_pipeline.fleet.session import open_session
from spark_pipeline.lab.hub_faults import Fault
from spark_pipeline.lab.lab import Lab
from spark_pipeline.weights import rsync
from spark_pipeline.weights.download import download
from spark_pipeline.weights.plan import plan
from spark_pipeline.weights.record import read_record
from spark_pipeline.weights.replicate import replicate
from spark_pipeline.weights.resolution import resolve_for_run
from spark_pipeline.weights.result import WeightsResult
from spark_pipeline.weights.verify import observe, prove, seal
from spark_pipeline_tests.lab.weights_bench import (
    BOTH,
    FILES,
    REPO,
    Bench,
    bench_on,
    expected,
    safetensors,
    size,
    wait_for,
)

pytestmark = pytest.mark.lab

TENSOR_BYTES = sum(len(content) for path, content in FILES.items() if path.endswith(".safetensors"))
LAST_PAGES_BYTES = 128 * 1024  # what the kernel has read ahead or still holds while it sends it; TENSOR_BYTES are 5 MB
AWKWARD = ["a b.bin", "$(touch pwned).bin", "'q\".bin", "-rf.bin", "#c.bin", "sub dir/é%20?.bin", ";x"]


@pytest.fixture
def bench(lab: Lab, tmp_path: Path) -> Iterator[Bench]:
    with bench_on(lab, tmp_path) as made:
        yield made


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
    wait_for(lambda: bench.part_bytes() > 100_000)
    for pid in bench.programs("head"):
        bench.on("head", 'kill -9 "$1"', pid)
    thread.join(60)
    assert failed[0].node == "head"
    kept = bench.part_bytes()
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
    wait_for(lambda: bench.part_bytes() > 100_000)
    orchestrator.send_signal(how)
    orchestrator.wait()

    wait_for(lambda: not bench.programs("head"))
    kept = bench.part_bytes()
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
    bench.fault()
    bench.assert_proven(bench.ensure())
    assert bench.sent_bytes() == size(FILES)


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
    wait_for(lambda: bench.part_bytes() > 100_000)
    look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c hf_sEcReT4[2] || true"
    seen_while_it_ran = bench.on("head", look).strip()
    thread.join(120)

    assert seen_while_it_ran == "0"
    assert bench.on("head", "grep -rl hf_sEcReT4[2] /home/spark /tmp || true") == ""
    assert "hf_sEcReT42" not in "\n".join(bench.said)


def test_a_small_disk_on_the_peer_is_found_before_the_first_byte(bench: Bench) -> None:
    bench.publish(FILES)
    bench.small_disk("peer", "2m")

    with pytest.raises(WeightsError, match="does not fit") as caught:
        bench.ensure()

    assert caught.value.node == "peer"
    assert re.search(r"needs 5\.\d MB, free 2\.\d MB, missing \d\.\d MB", caught.value.observed)
    assert f"free some room on the disk of {bench.weights_dir}/" in caught.value.remedy  # nothing of ours could go
    assert bench.fetched() == []
    bench.on("peer", 'umount "$1" && chown spark "$1"', bench.weights_dir)
    bench.assert_proven(bench.ensure())
    assert bench.sent_bytes() == size(FILES)


def test_on_a_small_disk_it_is_said_what_could_go_and_once_it_went_the_rest_fits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.small_disk("peer", "8m")
    spare = bench.publish({"model-1.safetensors": safetensors(1_500_000, seed=7)})
    bench.ensure()
    bench.publish(FILES)
    bench.ensure()
    bench.publish({"model-1.safetensors": safetensors(3_000_000, seed=8)})
    bench.forget()

    with pytest.raises(NoRoomError) as caught:
        bench.ensure()

    assert caught.value.node == "peer"
    assert bench.fetched() == []
    command, *could_go = caught.value.remedy.splitlines()
    assert could_go == [f"peer: {REPO} at {spare[:12]}, 1.5 MB"]
    words = command.partition(" removes ")[0].split()
    assert words == ["spark-pipeline", "weights", "prune", "weights_lab", "--yes"]
    monkeypatch.setenv("SPARK_PIPELINE_ROOT", str(bench.project.root))
    pruned = CliRunner().invoke(main, words[1:])
    assert pruned.exit_code == 0, pruned.output
    result = bench.ensure()
    assert spare not in bench.on("peer", 'ls "$1"', f"{bench.weights_dir}/{REPO}")
    assert result.nodes[1].copied_bytes == result.record.size_bytes == bench.sent_bytes()


def test_a_disk_that_fills_up_in_the_middle_is_named_and_the_next_run_goes_on(bench: Bench) -> None:
    bench.publish(FILES)
    bench.small_disk("head", "6m")
    bench.fault(Fault(kind="slow", path="model-1.safetensors", bytes_per_s=1_000_000))
    failed: list[WeightsError] = []

    def run() -> None:
        with pytest.raises(WeightsError) as caught:
            bench.ensure()
        failed.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: bench.part_bytes() > 100_000)
    bench.on("head", 'head -c 2500000 /dev/zero >"$1/other" 2>/dev/null || true', bench.weights_dir)
    thread.join(60)
    assert "No space left" in failed[0].observed
    bench.on("head", 'rm "$1/other"', bench.weights_dir)
    kept = bench.part_bytes()
    bench.fault()
    bench.forget()

    record = bench.ensure().record

    (resumed,) = bench.resumed("")
    assert resumed["path"].endswith("/model-1.safetensors")
    assert resumed["range"] == f"bytes={kept}-"
    assert resumed["sent_bytes"] == len(FILES["model-1.safetensors"]) - kept
    assert bench.fetched("model-2.safetensors") == []
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
    missing = size(FILES) - bench.held_bytes("head")
    bench.fault()
    bench.forget()
    bench.assert_proven(bench.ensure())
    assert bench.sent_bytes() == missing


def test_the_copy_goes_by_http_over_the_fabric_and_leaves_no_program_behind(bench: Bench) -> None:
    files = {**FILES, **{name: name.encode() for name in AWKWARD}}
    bench.publish(files)

    result = bench.ensure()

    assert not any("rsync" in line for line in bench.said)
    assert result.nodes[1].copied_bytes == size(files)
    assert bench.digests("peer", result.record.directory) == expected(files)
    assert bench.programs("head") == []


def test_where_the_port_is_closed_the_copy_goes_by_rsync(bench: Bench) -> None:
    shards = {f"model-{index}.bin": os.urandom(17_000_000) for index in range(4)}
    files = {**shards, **{name: name.encode() for name in AWKWARD}}
    bench.publish(files)

    with bench.closed_ports():
        result = bench.ensure()

    assert any("peer does not reach port" in line and "rsync" in line for line in bench.said)
    assert result.nodes[1].copied_bytes == size(files)
    assert bench.digests("peer", result.record.directory) == expected(files)
    assert bench.programs("head") == []


def test_without_the_heads_login_the_files_travel_all_the_same_and_it_is_said(bench: Bench) -> None:
    bench.publish(FILES)

    with bench.without_login():
        bench.assert_proven(bench.ensure())

    assert any("may not log in" in line and "ssh-copy-id" in line for line in bench.said)


def test_where_both_ways_are_closed_both_are_named(bench: Bench) -> None:
    bench.publish(FILES)

    with bench.closed_ports(), bench.without_login(), pytest.raises(LoginRefusedError) as caught:
        bench.ensure()

    assert caught.value.node == "peer"
    assert "ssh-copy-id" in caught.value.remedy
    assert "peer does not reach port" in caught.value.observed
    assert "Permission denied" in caught.value.observed
    bench.forget()
    assert bench.digests("peer", bench.ensure().record.directory) == expected(FILES)
    assert bench.fetched() == []


def test_no_step_leaves_the_model_in_a_nodes_page_cache(bench: Bench) -> None:
    bench.publish(FILES)
    with open_session(bench.project, "model", progress=print, run_id="r") as session:
        manifest = resolve_for_run(session)
        directory = f"{bench.weights_dir}/{REPO}/{manifest.commit}"
        reports = observe(session, manifest)

        def cached(*nodes: str) -> list[int]:
            return [bench.cached_bytes(node, directory) for node in nodes]

        proof = download(session, manifest, plan(manifest, directory, reports).head)
        assert max(cached("head")) <= LAST_PAGES_BYTES

        reports["head"] = proof.report
        replicate(session, manifest, plan(manifest, directory, reports).peers, reports)
        assert max(cached("peer")) <= LAST_PAGES_BYTES
        seal(session, manifest, BOTH)
        assert max(cached(*BOTH)) <= LAST_PAGES_BYTES

        for node in BOTH:
            bench.on(node, 'cat "$1"/*.safetensors >/dev/null', directory)
        assert min(cached(*BOTH)) >= TENSOR_BYTES  # or nothing was shown above
        again = plan(manifest, directory, observe(session, manifest, rehash=True))
        prove(session, manifest, again.nodes, rehash=True)
        assert max(cached(*BOTH)) <= LAST_PAGES_BYTES


def test_nor_does_a_copy_by_rsync(bench: Bench) -> None:
    bench.publish(FILES)
    with bench.closed_ports():
        directory = bench.ensure().record.directory
    assert any("rsync" in line for line in bench.said)
    assert [bench.cached_bytes(node, directory) <= LAST_PAGES_BYTES for node in BOTH] == [True, True]


def test_the_rsync_command_works_as_typed(bench: Bench) -> None:
    bench.publish(FILES)
    record = bench.ensure().record
    with open_session(bench.project, "model", progress=print, run_id="r") as session:
        prepare_fabric(session.connection, session.fleet, bench.project.known_hosts, [session.fleet.node("peer")])
        words = rsync.rsync_command(session.fleet, session.fleet.node("peer"), record.directory)
    bench.on("peer", 'rm -- "$1/config.json"', record.directory)
    typed = f"printf './config.json\\0' | {shlex.join(words)}"

    bench.on("head", 'su spark -c "$1"', f"cd; {typed}")

    assert bench.digests("peer", record.directory) == expected(FILES)
