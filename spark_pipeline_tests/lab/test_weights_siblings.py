"""The next revision of a model that is on both nodes: each links what it has, and only the rest travels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_pipeline.fleet.session import open_session
from spark_pipeline.lab.lab import Lab
from spark_pipeline.weights import stage
from spark_pipeline_tests.lab.weights_bench import BOTH, FILES, Bench, bench_on, safetensors, size

pytestmark = pytest.mark.lab

NEW = {**FILES, "config.json": b'{"architectures": ["Y"]}', "model-2.safetensors": safetensors(1_000_000, seed=3)}
CHANGED = ("config.json", "model-2.safetensors")
CHANGED_BYTES = sum(len(NEW[path]) for path in CHANGED)


@pytest.fixture
def bench(lab: Lab, tmp_path) -> Iterator[Bench]:
    with bench_on(lab, tmp_path) as made:
        yield made


def test_only_the_files_that_are_new_travel_to_head_and_peer(bench: Bench) -> None:
    old = bench.publish(FILES)
    first = bench.ensure()
    bench.publish(NEW)
    bench.forget()
    with open_session(bench.project, "model", progress=print, run_id="plan") as session:
        planned = stage.plan(session)

    second = bench.ensure()

    kept = f"2 files ({(size(NEW) - CHANGED_BYTES) / 1e6:.1f} MB) are those of revision {old[:12]}: linked"
    assert {f"head: {kept}", f"peer: {kept}"} < set(planned.reasons)
    assert {entry["path"].rpartition("/")[2] for entry in bench.fetched()} == set(CHANGED)
    head, peer = second.nodes
    assert head.downloaded_bytes == bench.sent_bytes() == peer.copied_bytes == CHANGED_BYTES
    bench.assert_proven(second, NEW)
    bench.assert_proven(first, FILES)
    inode = 'stat -c "%i %h" "$1/model-1.safetensors" "$2/model-1.safetensors"'
    for node in BOTH:
        old_one, new_one = bench.on(node, inode, first.record.directory, second.record.directory).splitlines()
        assert old_one == new_one
        assert old_one.endswith(" 2")


def test_both_revisions_stay_proven_and_going_back_reads_and_fetches_nothing(bench: Bench) -> None:
    old = bench.publish(FILES)
    bench.ensure()
    bench.publish(NEW)
    new = bench.ensure().record.commit
    bench.forget()

    back, forth = bench.ensure(revision=old), bench.ensure(revision=new)

    assert (back.changed, forth.changed) == (False, False)
    assert bench.fetched() == []


def test_a_file_that_was_written_into_is_repaired_in_both_revisions(bench: Bench) -> None:
    old = bench.publish(FILES)
    first = bench.ensure()
    bench.publish(NEW)
    second = bench.ensure()
    spoil = 'printf "\\000\\000" | dd of="$1/model-1.safetensors" bs=1 seek=5000 conv=notrunc status=none'
    bench.on("peer", spoil, second.record.directory)
    bench.forget()

    bench.ensure()
    again = bench.ensure(revision=old)

    assert bench.fetched() == []
    assert again.nodes[1].copied_bytes == 0  # the good one that the other revision just got is linked
    bench.assert_proven(second, NEW)
    bench.assert_proven(first, FILES)
