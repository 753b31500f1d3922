"""The download program against hubs that behave as badly as real ones do."""

from __future__ import annotations

import json
import os
import time

import pytest

from spark_pipeline.errors import HubError, VerificationError
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.lab.hub_faults import Fault
from spark_pipeline_tests.unit.weights.odd_server import OddServer, answer, first, redirect, self_signed, send

BIG = os.urandom(400_000)
SMALL = b'{"architectures": ["X"]}'
FILES = {"config.json": SMALL, "model.bin": BIG}


def test_every_file_arrives_with_its_own_bytes_and_is_not_fetched_again(node_with, hub):
    node = node_with(FILES)
    node.host = LocalHost("head")  # the whole way once: sent over standard input, run by a Python of its own

    report = node.download()

    assert {path: (node.directory / path).read_bytes() for path in FILES} == FILES
    assert (report.absent, report.bad, report.unproven) == ((), (), ())
    assert report.downloaded_bytes == hub.sent_bytes() == len(BIG) + len(SMALL)
    assert node.download().downloaded_bytes == 0
    assert len(hub.file_requests()) == 2


def test_awkward_names_are_names(node_with):
    names = ["a b.bin", "$(touch pwned).bin", "'q\".bin", "-rf.bin", "#c.bin", "sub dir/é%20?.bin", "..x/y.bin"]
    node = node_with({name: name.encode() for name in names})

    node.download()

    assert {name: (node.directory / name).read_text() for name in names} == {name: name for name in names}


def test_ten_cuts_cost_no_byte_twice(node_with, hub):
    node = node_with(FILES)
    hub.fault(Fault(kind="cut", path="model.bin", after_bytes=35_000, times=10))

    report = node.download()

    assert (node.directory / "model.bin").read_bytes() == BIG
    assert report.downloaded_bytes == hub.sent_bytes() == len(BIG) + len(SMALL)
    assert [entry["range"] for entry in hub.file_requests("model.bin")][:3] == [None, "bytes=35000-", "bytes=70000-"]


def test_a_new_process_goes_on_at_the_byte_where_the_last_one_stopped(node_with, hub):
    node = node_with(FILES)
    part = node.directory / ".spark_pipeline" / "part" / "model.bin"
    part.parent.mkdir(parents=True)
    part.write_bytes(BIG[:300_000])

    node.download()

    assert [entry["range"] for entry in hub.file_requests("model.bin")] == ["bytes=300000-"]
    assert (node.directory / "model.bin").read_bytes() == BIG


def test_a_complete_part_is_not_asked_for_again(node_with, hub):
    node = node_with(FILES)
    part = node.directory / ".spark_pipeline" / "part" / "model.bin"
    part.parent.mkdir(parents=True)
    part.write_bytes(BIG)

    node.download()

    assert hub.file_requests("model.bin") == []
    assert (node.directory / "model.bin").read_bytes() == BIG


def test_a_hub_that_ignores_ranges_makes_only_that_file_start_again(node_with, hub):
    node = node_with(FILES)
    hub.fault(
        Fault(kind="cut", path="model.bin", after_bytes=100_000, times=1), Fault(kind="ignore_range", path="model.bin")
    )

    node.download()

    assert (node.directory / "model.bin").read_bytes() == BIG
    assert hub.sent_bytes("model.bin") == 100_000 + len(BIG)
    assert len(hub.file_requests("config.json")) == 1


def test_a_flipped_byte_on_the_way_is_noticed_and_only_that_file_comes_again(node_with, hub):
    node = node_with(FILES)
    hub.fault(Fault(kind="flip", path="model.bin", offset=7, times=1))

    report = node.download()

    assert (node.directory / "model.bin").read_bytes() == BIG
    assert [bad.path for bad in report.set_aside] == ["model.bin"]
    assert (node.directory / ".spark_pipeline" / "bad" / "model.bin").read_bytes()[7] == BIG[7] ^ 0xFF
    assert len(hub.file_requests("config.json")) == 1


def test_bytes_that_stay_wrong_never_get_a_name(node_with, hub):
    node = node_with(FILES)
    hub.fault(Fault(kind="flip", path="model.bin"))

    with pytest.raises(VerificationError) as caught:
        node.download()

    assert caught.value.node == "head"
    assert node.manifest.files[1].sha256 in caught.value.observed
    assert not (node.directory / "model.bin").exists()


def test_another_size_than_the_manifests_is_refused_before_the_bytes_come(node_with, hub):
    node = node_with(FILES)
    hub.fault(Fault(kind="wrong_size", path="model.bin", size_delta=5))

    with pytest.raises(VerificationError, match=r"model\.bin came wrong twice"):
        node.download()

    assert not (node.directory / "model.bin").exists()


def test_a_busy_hub_is_asked_again_when_it_said(node_with, hub):
    node = node_with(FILES)
    hub.fault(Fault(kind="unavailable", path="config.json", retry_after_s=3, times=1))

    node.download()

    first, second = hub.file_requests("config.json")
    assert second["time_s"] - first["time_s"] >= 3
    assert any("503" in note and "again in 3 s" in note for note in node.notes)


def test_a_gated_model_says_what_to_do_and_the_token_opens_it(node_with, hub):
    node = node_with(FILES)
    hub.fault(Fault(kind="gated", token="hf_open"))

    with pytest.raises(HubError, match="refuses") as caught:
        node.download()
    assert "HF_TOKEN" in caught.value.remedy
    with pytest.raises(HubError) as caught:
        node.download(token="hf_wrong")
    assert "403" in caught.value.observed
    assert "hf_wrong" not in str(caught.value)

    assert node.download(token="hf_open").absent == ()
    assert not any(b"hf_open" in path.read_bytes() for path in node.directory.rglob("*") if path.is_file())


def test_a_file_that_vanished_from_the_hub_ends_it_at_once(node_with, hub):
    node = node_with(FILES)
    (hub.server.root / node.manifest.repo / node.manifest.commit / "model.bin").unlink()

    with pytest.raises(HubError, match=r"no model\.bin any more"):
        node.download()


def test_a_shard_that_the_index_names_and_the_revision_lacks_is_missed_before_any_shard_is_fetched(node_with, hub):
    index = json.dumps({"weight_map": {"a": "model-1.bin", "b": "model-2.bin"}}).encode()
    node = node_with({"model-1.bin": BIG, "model.safetensors.index.json": index})

    with pytest.raises(VerificationError, match="names shards that this revision does not have") as caught:
        node.download()

    assert caught.value.observed == "model-2.bin"
    assert hub.sent_bytes() == hub.sent_bytes("model.safetensors.index.json") == len(index)


def test_a_stalled_connection_is_ended_and_taken_up_again(node_with):
    node = node_with({"model.bin": BIG})
    with OddServer(BIG, _stall_once) as server:
        report = node.download(url=server.url, stall_seconds=0.5)

    assert report.absent == ()
    assert server.ranges == ["", "bytes=100000-"]
    assert any("no byte for" in note for note in node.notes)


def test_the_token_goes_to_the_hub_and_not_where_it_redirects(node_with):
    node = node_with({"model.bin": BIG})
    with OddServer(BIG, send) as cdn, OddServer(BIG, lambda handler: redirect(handler, cdn.url)) as server:
        report = node.download(url=server.url, token="hf_secret")

    assert report.absent == ()
    assert server.tokens == ["Bearer hf_secret"]
    assert cdn.tokens == [""]


def test_a_signature_that_ran_out_is_renewed_by_asking_the_hub_again(node_with):
    node = node_with({"model.bin": BIG})
    with (
        OddServer(BIG, first(lambda handler: answer(handler, 403))) as cdn,
        OddServer(BIG, lambda handler: redirect(handler, cdn.url)) as server,
    ):
        report = node.download(url=server.url)

    assert report.absent == ()
    assert len(server.tokens) == 2


def test_a_hub_that_is_not_there_is_given_up_after_some_tries(node_with, monkeypatch):
    node = node_with({"model.bin": BIG})
    with OddServer(BIG, send) as server:
        gone = server.url
    monkeypatch.setattr("spark_pipeline.weights.node.download.MAX_FAILURES", 2)  # in-process: no minute of waiting
    from spark_pipeline.weights.node.download import download
    from spark_pipeline.weights.node.layout import Model
    from spark_pipeline.weights.node.messages import Problem, Source
    from spark_pipeline.weights.node_program import request

    model = Model(request("download", node.manifest, str(node.weights_dir)))
    with pytest.raises(Problem) as caught:
        download(model, Source(gone))

    assert caught.value.kind == "hub"
    assert "refused" in caught.value.observed


def test_a_certificate_that_nobody_vouches_for_ends_it_before_the_token_is_shown(node_with, tmp_path):
    node = node_with({"model.bin": BIG})
    with (
        OddServer(BIG, send, certificate=self_signed(tmp_path)) as server,
        pytest.raises(HubError, match="shows no valid certificate"),
    ):
        node.download(url=server.url, token="hf_secret")

    assert server.tokens == []


def _stall_once(handler) -> None:
    if len(handler.outer.ranges) > 1:
        send(handler)
        return
    send(handler, until=100_000)
    handler.wfile.flush()
    time.sleep(2)
