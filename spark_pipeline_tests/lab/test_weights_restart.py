"""A node loses power: what was proven on it before is read again once, on that node only, and only what is wrong
travels. On the second lab, whose nodes may be killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_pipeline.cluster.preflight import need_weights
from spark_pipeline.errors import ClusterError
from spark_pipeline.fleet.session import open_session
from spark_pipeline.lab.lab import Lab
from spark_pipeline_tests.lab.weights_bench import BOTH, FILES, Bench, bench_on, size

pytestmark = pytest.mark.lab

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@pytest.fixture(scope="module")
def shared_bench(second_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_on(second_lab, tmp_path_factory.mktemp("restart")) as made:
        yield made


@pytest.fixture
def bench(shared_bench: Bench) -> Iterator[Bench]:
    shared_bench.publish(FILES)
    yield shared_bench
    shared_bench.lab.up(2)
    shared_bench.clean()


def boots(lab: Lab) -> dict[str, str]:
    return {node: lab.run_in_node(node, ["cat", BOOT_ID]).stdout for node in BOTH}


def test_every_start_of_a_node_is_a_boot_of_its_own(second_lab: Lab) -> None:
    before = boots(second_lab)
    second_lab.restart_node("peer")
    after = boots(second_lab)

    assert len({Path(BOOT_ID).read_text(), *before.values(), after["peer"]}) == 4
    assert after["head"] == before["head"]


def test_a_peer_that_lost_power_reads_everything_again_and_gets_only_what_is_wrong(bench: Bench) -> None:
    record = bench.ensure().record
    bench.lab.kill_node("peer")
    _lose_a_byte(bench, record.directory, "model-2.safetensors")
    bench.lab.up(2)
    bench.forget()

    result = bench.ensure()

    head, peer = result.nodes
    there = f"4 files ({size(FILES) / 1e6:.1f} MB) there"
    assert f"peer: {there}, but peer was restarted since they were proven: read" in result.plan.reasons
    assert "head: every file is there, proven and unchanged since" in result.plan.reasons
    assert head.verified_files == 0
    assert peer.verified_bytes >= size(FILES)
    assert [bad.path for bad in peer.repaired] == ["model-2.safetensors"]
    assert peer.copied_bytes == len(FILES["model-2.safetensors"])
    assert bench.fetched() == []
    bench.assert_proven(result)
    assert not bench.ensure().changed


def test_a_head_that_was_switched_off_and_on_fetches_nothing(bench: Bench) -> None:
    bench.ensure()
    bench.lab.restart_node("head")
    bench.forget()

    result = bench.ensure()

    head, peer = result.nodes
    assert (head.verified_files, head.verified_bytes) == (4, size(FILES))
    assert (peer.verified_files, peer.copied_bytes, bench.fetched()) == (0, 0, [])
    bench.assert_proven(result)


def test_a_marker_of_an_earlier_boot_is_not_enough_to_serve(bench: Bench) -> None:
    record = bench.ensure().record
    bench.lab.restart_node("peer")
    with open_session(bench.project, "model", progress=print, run_id="r") as session:
        need_weights(session.head, record)
        with pytest.raises(ClusterError, match="restarted since its model was verified") as caught:
            need_weights(session.connection.host("peer"), record)
    assert caught.value.node == "peer"

    record = bench.ensure().record

    with open_session(bench.project, "model", progress=print, run_id="r") as session:
        need_weights(session.connection.host("peer"), record)


def _lose_a_byte(bench: Bench, directory: str, path: str) -> None:
    """On the disk of the peer, which is off: other bytes under the old size, times and inode, as a power cut leaves
    what the disk never got. (Nobody can set a ctime back, so the note gets the new one.)"""
    here = bench.lab.node("peer").disk / "upper" / directory.lstrip("/")
    before = (here / path).stat()
    with (here / path).open("r+b") as stream:
        stream.seek(1_000_000)
        byte = stream.read(1)[0]
        stream.seek(1_000_000)
        stream.write(bytes([byte ^ 1]))
    os.utime(here / path, ns=(before.st_atime_ns, before.st_mtime_ns))
    notes = here / ".spark_pipeline" / "proofs.json"
    known = json.loads(notes.read_text())
    assert known[path][4] == before.st_ctime_ns
    known[path][4] = (here / path).stat().st_ctime_ns
    notes.write_text(json.dumps(known))
