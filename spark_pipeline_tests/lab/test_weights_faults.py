"""What goes wrong between hub, head and peer, against real processes. After each fault either both nodes are complete
and proven, or an error says which node, what was seen and what to do; and the next run fetches only what is missing.

The hub's own access log says what was fetched. Faults that are not here: test_weights.py.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from typing import Literal

import pytest

from spark_pipeline.errors import HubError, SparkPipelineError, VerificationError, WeightsError
from spark_pipeline.fleet.session import open_session
from spark_pipeline.lab import hub_server
from spark_pipeline.lab.hub_faults import Fault
from spark_pipeline.lab.lab import Lab
from spark_pipeline.weights import download, node_program, replicate, stage
from spark_pipeline.weights.resolution import resolve_for_run
from spark_pipeline.weights.result import WeightsResult
from spark_pipeline_tests.lab.weights_bench import FILES, Bench, bench_on, expected, safetensors, size, wait_for

pytestmark = pytest.mark.lab

BIG, OTHER = "model-1.safetensors", "model-2.safetensors"
INDEX = "model.safetensors.index.json"
SLOW_FABRIC = "8mbit"  # a megabyte a second: five seconds for all files


@pytest.fixture(scope="module")
def shared_bench(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_on(lab, tmp_path_factory.mktemp("bench")) as made:
        yield made


@pytest.fixture
def bench(shared_bench: Bench) -> Iterator[Bench]:
    """One model published, nothing on the nodes yet."""
    shared_bench.publish(FILES)
    yield shared_bench
    shared_bench.clean()


@pytest.fixture(scope="module")
def shared_frail_bench(second_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_on(second_lab, tmp_path_factory.mktemp("frail")) as made:
        yield made


@pytest.fixture
def frail_bench(shared_frail_bench: Bench) -> Iterator[Bench]:
    """The same on nodes and links that may be broken."""
    shared_frail_bench.publish(FILES)
    yield shared_frail_bench
    shared_frail_bench.clean()


def assert_clear(error: BaseException | None, node: str, *seen: str) -> None:
    """It names the node, what was seen there and what to do."""
    print(error)  # pytest shows it with a failure
    assert isinstance(error, SparkPipelineError)
    assert error.node == node
    for word in seen:
        assert word in error.observed
    assert error.remedy


def next_run(bench: Bench) -> WeightsResult:
    """A run on a hub in good health; from here on the log is this run's."""
    bench.fault()
    bench.forget()
    return bench.ensure()


def assert_nothing_is_left_to_do(bench: Bench) -> None:
    assert not next_run(bench).changed
    assert bench.fetched() == []


# --- on the way from the hub


def test_a_byte_flipped_on_the_way_costs_that_file_once_more_and_reaches_nobody(bench: Bench) -> None:
    bench.fault(Fault(kind="flip", path=OTHER, times=1))

    result = bench.ensure()

    assert [bad.path for bad in result.nodes[0].repaired] == [OTHER]
    assert bench.sent_bytes() == size(FILES) + len(FILES[OTHER])
    assert len(bench.fetched(OTHER)) == 2
    bench.assert_proven(result)
    assert_nothing_is_left_to_do(bench)


def test_ten_cuts_in_the_middle_cost_no_byte_twice(bench: Bench) -> None:
    bench.fault(Fault(kind="cut", path=BIG, after_bytes=250_000, times=10))

    result = bench.ensure()

    asked = [entry["range"] for entry in bench.fetched(BIG)]
    assert asked == [None, *(f"bytes={250_000 * cut}-" for cut in range(1, 11))]
    assert bench.sent_bytes() == size(FILES)
    bench.assert_proven(result)
    assert_nothing_is_left_to_do(bench)


def test_a_server_that_ignores_ranges_makes_only_that_file_start_again(bench: Bench) -> None:
    bench.fault(Fault(kind="cut", path=BIG, after_bytes=700_000, times=1), Fault(kind="ignore_range", path=BIG))

    result = bench.ensure()

    assert [entry["status"] for entry in bench.fetched(BIG)] == [200, 200]
    assert bench.sent_bytes() == size(FILES) + 700_000
    bench.assert_proven(result)
    assert_nothing_is_left_to_do(bench)


@pytest.mark.parametrize("status", [503, 429])
def test_a_hub_that_says_when_to_come_again_is_left_alone_until_then(bench: Bench, status: Literal[503, 429]) -> None:
    bench.fault(Fault(kind="unavailable", path=BIG, status=status, retry_after_s=3, times=1))

    result = bench.ensure()

    refused, served = bench.fetched(BIG)
    assert (refused["status"], served["status"]) == (status, 200)
    assert served["time_s"] - refused["time_s"] >= 3
    assert any(f"HTTP {status}" in line and "again in 3 s" in line for line in bench.said)
    assert bench.sent_bytes() == size(FILES)
    bench.assert_proven(result)
    assert_nothing_is_left_to_do(bench)


def test_a_hub_that_stays_unavailable_is_named_and_what_came_is_kept(bench: Bench) -> None:
    bench.fault(Fault(kind="unavailable", path=BIG, retry_after_s=1))

    with pytest.raises(HubError) as caught:
        bench.ensure()

    assert_clear(caught.value, "head", "HTTP 503")
    result = next_run(bench)
    assert bench.sent_bytes() == bench.sent_bytes(BIG) == len(FILES[BIG])
    bench.assert_proven(result)


def test_a_stall_is_ended_and_the_next_connection_goes_on_from_that_byte(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "STALL_SECONDS", 2.0)
    bench.fault(Fault(kind="stall", path=BIG, after_bytes=1_000_000, times=1))

    result = bench.ensure()

    assert [entry["range"] for entry in bench.resumed(BIG)] == ["bytes=1000000-"]
    assert bench.sent_bytes() == size(FILES)
    assert any("no byte for 2 s" in line for line in bench.said)
    bench.assert_proven(result)
    assert_nothing_is_left_to_do(bench)


# --- in the repository


def test_a_shard_that_the_index_names_is_missed_before_any_shard_is_fetched(bench: Bench) -> None:
    bench.publish({path: content for path, content in FILES.items() if path != OTHER})
    bench.forget()

    with pytest.raises(VerificationError, match="names shards that this revision does not have") as caught:
        bench.ensure()

    assert_clear(caught.value, "head", OTHER)
    assert bench.sent_bytes() == bench.sent_bytes(INDEX)
    bench.publish(FILES)
    result = next_run(bench)
    assert bench.sent_bytes() == size(FILES) - len(FILES[INDEX])  # that one is linked from the refused revision
    bench.assert_proven(result)


@pytest.mark.parametrize("path", ["../../../escaped.bin", "/etc/escaped.bin", "sub/../../escaped.bin"])
def test_a_repository_with_a_path_that_leads_elsewhere_is_refused_before_the_first_byte(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    describe = hub_server.describe_model

    def with_a_stray(*arguments, **more):
        answer = describe(*arguments, **more)
        stray = {**answer["siblings"][-1], "rfilename": path}
        return {**answer, "siblings": [*answer["siblings"], stray]}

    with monkeypatch.context() as patched:
        patched.setattr(hub_server, "describe_model", with_a_stray)
        with pytest.raises(WeightsError) as caught:
            bench.ensure()

    assert path in caught.value.observed
    assert caught.value.remedy
    assert bench.fetched() == []
    for node in ("head", "peer"):
        assert (
            bench.on(node, 'ls -d "$1" /home/spark/*escaped* /etc/*escaped* 2>/dev/null || true', bench.weights_dir)
            == ""
        )
    bench.assert_proven(next_run(bench))
    assert bench.sent_bytes() == size(FILES)


def test_a_branch_that_moves_between_two_steps_means_the_same_commit_to_both(bench: Bench) -> None:
    first = bench.publish(FILES)
    moved = {**FILES, OTHER: safetensors(1_500_000, seed=3)}
    with open_session(bench.project, "model", progress=bench.said.append, run_id=uuid.uuid4().hex) as session:
        reported = resolve_for_run(session)  # as the report does, before it reads headers
        second = bench.publish(moved)
        result = stage.ensure(session)

    assert reported.commit == result.record.commit == first != second
    assert bench.sent_bytes() == size(FILES)
    bench.assert_proven(result)

    after = next_run(bench)
    assert after.record.commit == second
    assert bench.sent_bytes() == bench.sent_bytes(OTHER) == len(moved[OTHER])
    bench.assert_proven(after, moved)


def test_a_branch_that_moves_between_download_and_copy_changes_nothing_for_the_peer(bench: Bench) -> None:
    first = bench.publish(FILES)
    bench.fault(Fault(kind="slow", path=BIG, bytes_per_s=1_500_000))
    run = bench.start()
    wait_for(lambda: bench.part_bytes() > 100_000)
    second = bench.publish({**FILES, OTHER: safetensors(1_500_000, seed=3)})

    result = run.result(60)

    assert result.record.commit == first != second
    bench.assert_proven(result)


# --- on the way from the head


def test_a_byte_flipped_on_the_fabric_costs_that_file_once_more(bench: Bench) -> None:
    with bench.flipped_on_the_fabric(OTHER, times=1) as relay:
        result = bench.ensure()

    assert relay.flipped == 1
    head, peer = result.nodes
    ((bad,), none) = peer.repaired, head.repaired
    assert (bad.path, bad.expected, none) == (OTHER, f"sha256 {expected(FILES)[OTHER]}", ())
    assert bad.actual.startswith("sha256 ")
    assert bad.actual != bad.expected
    assert peer.copied_bytes == size(FILES) + len(FILES[OTHER])
    assert bench.sent_bytes() == size(FILES)
    bench.assert_proven(result)
    assert_nothing_is_left_to_do(bench)


def test_a_fabric_that_keeps_flipping_is_the_peers_and_only_what_came_wrong_travels_again(bench: Bench) -> None:
    with bench.flipped_on_the_fabric(OTHER, times=2) as relay, pytest.raises(VerificationError) as caught:
        bench.ensure()

    assert relay.flipped == 2
    assert OTHER in str(caught.value)
    assert_clear(caught.value, "peer", f"expected sha256 {expected(FILES)[OTHER]}", "got sha256 ")
    kept = bench.held_bytes("peer")
    result = next_run(bench)
    assert bench.fetched() == []
    assert result.nodes[1].copied_bytes == size(FILES) - kept >= len(FILES[OTHER])
    bench.assert_proven(result)


# --- on the nodes


@pytest.mark.parametrize("node", ["head", "peer"])
@pytest.mark.parametrize(
    ("forbid", "allow"), [("chown root", "chown spark"), ("chmod 555", "chmod 755")], ids=["owner", "mode"]
)
def test_a_directory_that_may_not_be_written_is_named_before_the_first_byte(
    bench: Bench, node: str, forbid: str, allow: str
) -> None:
    bench.on(node, f'mkdir -p "$1" && chown spark "$1" && {forbid} "$1"', bench.weights_dir)

    with pytest.raises(WeightsError, match="may not be written") as caught:
        bench.ensure()

    assert_clear(caught.value, node, "belongs to", "logs in as spark")
    assert bench.fetched() == []
    bench.on(node, f'{allow} "$1"', bench.weights_dir)
    bench.assert_proven(next_run(bench))
    assert bench.sent_bytes() == size(FILES)


def test_a_symlink_in_the_way_is_followed_by_nobody_and_without_it_the_next_run_is_done(bench: Bench) -> None:
    directory = bench.ensure().record.directory
    bench.on("peer", 'rm "$1" && ln -s /etc/hostname "$1"', f"{directory}/config.json")

    with pytest.raises(WeightsError) as caught:
        bench.ensure()

    assert_clear(caught.value, "peer", "config.json is a symlink to /etc/hostname")
    bench.on("peer", 'rm "$1"', f"{directory}/config.json")
    result = next_run(bench)
    assert bench.fetched() == []
    assert result.nodes[1].copied_bytes == len(FILES["config.json"])
    bench.assert_proven(result)


def test_a_disk_of_the_peer_that_fills_up_in_the_middle_is_named_and_only_the_rest_travels_then(bench: Bench) -> None:
    bench.small_disk("peer", "8m")
    bench.fault(Fault(kind="slow", path=BIG, bytes_per_s=1_500_000))
    run = bench.start()
    wait_for(lambda: bench.part_bytes() > 100_000)  # the room was looked at
    bench.on("peer", 'head -c 5000000 /dev/zero >"$1/other"', bench.weights_dir)

    assert_clear(run.exception(60), "peer", "No space left")
    bench.on("peer", 'rm "$1/other"', bench.weights_dir)
    kept = bench.held_bytes("peer")
    result = next_run(bench)

    assert bench.fetched() == []
    assert result.nodes[1].copied_bytes == size(FILES) - kept
    bench.assert_proven(result)


# --- nodes and links that break


def test_a_head_that_dies_twice_in_the_middle_of_a_download_goes_on_where_it_was(frail_bench: Bench) -> None:
    bench = frail_bench
    for _ in range(2):
        had = bench.part_bytes()
        bench.fault(Fault(kind="slow", path=BIG, bytes_per_s=200_000))
        run = bench.start()
        wait_for(lambda had=had: bench.part_bytes() > had + 100_000)
        bench.lab.kill_node("head")
        assert_clear(run.exception(120), "head")
        bench.lab.up(2)
    kept = bench.part_bytes()

    result = next_run(bench)

    assert kept > 200_000
    assert [entry["range"] for entry in bench.fetched(BIG)] == [f"bytes={kept}-"]
    assert bench.sent_bytes() == len(FILES[BIG]) - kept
    bench.assert_proven(result)


@pytest.fixture
def slow_fabric(frail_bench: Bench) -> Iterator[Bench]:
    """The way to the peer is slow enough to interfere, and in good health again at the end."""
    lab = frail_bench.lab
    in_switch = ["ip", "netns", "exec", lab.plan.fabric_namespace, "tc", "qdisc"]
    shape = ["dev", "peer-fabric0", "root", "tbf", "rate", SLOW_FABRIC, "burst", "128k", "latency", "200ms"]
    subprocess.run([*in_switch, "replace", *shape], check=True)
    yield frail_bench
    cable(lab, "up")
    subprocess.run([*in_switch, "del", "dev", "peer-fabric0", "root"], check=True)


def cable(lab: Lab, state: str) -> None:
    """Plug the peer's cable in ('up') or out ('down'), at the switch's end."""
    subprocess.run(["ip", "-n", lab.plan.fabric_namespace, "link", "set", "peer-fabric0", state], check=True)


def start_and_unplug(bench: Bench) -> tuple:
    run = bench.start()
    wait_for(lambda: bench.held_bytes("peer") > 300_000)
    cable(bench.lab, "down")
    return run, bench.held_bytes("peer")


def test_a_fabric_link_that_comes_back_soon_ends_no_run(slow_fabric: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = slow_fabric
    monkeypatch.setattr(replicate, "STALL_SECONDS", 2.0)
    run, _ = start_and_unplug(bench)
    time.sleep(6)
    cable(bench.lab, "up")

    result = run.result(90)

    assert result.nodes[1].copied_bytes == size(FILES)
    assert bench.sent_bytes() == size(FILES)
    bench.assert_proven(result)
    assert_nothing_is_left_to_do(bench)


def test_a_fabric_link_that_stays_down_is_the_peers_and_the_next_run_brings_the_rest(
    slow_fabric: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = slow_fabric
    with monkeypatch.context() as patched:
        patched.setattr(node_program, "SILENCE_SECONDS", 10.0)
        run, kept = start_and_unplug(bench)
        assert_clear(run.exception(120), "peer")
    cable(bench.lab, "up")

    result = next_run(bench)

    assert bench.fetched() == []
    assert result.nodes[1].copied_bytes <= size(FILES) - kept
    bench.assert_proven(result)
