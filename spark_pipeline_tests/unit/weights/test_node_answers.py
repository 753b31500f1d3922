"""One odd answer costs no good byte; a source that stays odd is given up, and said what it did."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from functools import partial
from typing import Any

import pytest

from spark_pipeline.errors import HubError, SparkPipelineError, VerificationError, WeightsError
from spark_pipeline.weights.node import download
from spark_pipeline.weights.node.layout import Model
from spark_pipeline.weights.node.messages import Source
from spark_pipeline.weights.node.serve import Server
from spark_pipeline.weights.node_program import request
from spark_pipeline_tests.unit.weights.odd_server import OddServer, answer, first, redirect, send

BIG = os.urandom(400_000)
FILES = {"model.bin": BIG}
HALF = 200_000
REST = f"bytes={HALF}-"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(download, "PAUSE_AFTER_PROGRESS_SECONDS", 0.001)


@pytest.fixture
def half(node_with):
    """A node that has half of the file."""
    node = node_with(FILES)
    part(node).parent.mkdir(parents=True)
    part(node).write_bytes(BIG[:HALF])
    return node


def part(node: Any) -> Any:
    return node.directory / ".spark_pipeline" / "part" / "model.bin"


def ranged(handler: Any, content_range: str) -> None:
    answer(handler, 206, BIG[HALF:], {"Content-Range": content_range})


ODD = [
    pytest.param(partial(answer, status=200, body=b"back soon"), id="a page about maintenance"),
    pytest.param(partial(answer, status=200, body=b"", headers={"Content-Length": None}), id="without a length"),
    pytest.param(partial(answer, status=200, headers={"Content-Length": "abc"}), id="length that is no number"),
    pytest.param(partial(answer, status=416), id="416"),
    pytest.param(partial(ranged, content_range="bytes 200000-499999/500000"), id="range of another file"),
    pytest.param(partial(ranged, content_range="bytes 100000-399999/400000"), id="range from another byte"),
    pytest.param(partial(ranged, content_range="200000"), id="range that is none"),
]


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_answer_throws_nothing_away(half, odd):
    with OddServer(BIG, first(odd)) as server:
        report = half.download(url=server.url)

    assert server.ranges == [REST, REST]
    assert (report.downloaded_bytes, report.set_aside) == (len(BIG) - HALF, ())
    assert (half.directory / "model.bin").read_bytes() == BIG


@pytest.mark.parametrize("odd", [ODD[1], ODD[3], *ODD[5:]])
def test_a_source_that_cannot_go_on_where_the_part_ends_sends_the_whole_file(half, odd):
    with OddServer(BIG, first(odd, times=2)) as server:
        half.download(url=server.url)

    assert server.ranges == [REST, REST, ""]
    assert (half.directory / "model.bin").read_bytes() == BIG


@pytest.mark.parametrize("odd", [ODD[0], ODD[4]])
def test_another_size_said_twice_ends_it_and_the_part_stays(half, odd):
    with (
        OddServer(BIG, odd) as server,
        pytest.raises(VerificationError, match=r"model\.bin came wrong twice") as caught,
    ):
        half.download(url=server.url)

    assert "expected 400000 bytes, got" in caught.value.observed
    assert len(server.ranges) == 2
    assert part(half).read_bytes() == BIG[:HALF]


def test_a_range_may_leave_the_total_open(half):
    with OddServer(BIG, partial(ranged, content_range="bytes 200000-399999/*")) as server:
        half.download(url=server.url)

    assert server.ranges == [REST]
    assert (half.directory / "model.bin").read_bytes() == BIG


def test_a_source_that_never_gets_further_is_given_up(node_with):
    """It cuts at the half and knows no ranges: each time it begins anew, which is no progress."""
    node = node_with(FILES)

    def cut(handler: Any) -> None:
        if handler.headers.get("Range") or len(handler.outer.ranges) > 100:
            answer(handler, 416)
        else:
            send(handler, until=HALF)

    with OddServer(BIG, cut) as server, pytest.raises(HubError, match="does not come"):
        node.download(url=server.url)

    assert len(server.ranges) <= download.MAX_FAILURES + 1


def test_a_length_that_stays_no_number_is_told(node_with):
    node = node_with(FILES)
    with (
        OddServer(BIG, partial(answer, status=200, headers={"Content-Length": "abc"})) as server,
        pytest.raises(HubError, match="does not come") as caught,
    ):
        node.download(url=server.url)

    assert "'abc'" in caught.value.observed


def test_a_permanent_redirect_is_followed_where_python_itself_does_not(node_with, monkeypatch: pytest.MonkeyPatch):
    node = node_with(FILES)
    _as_in_python_3_10(monkeypatch)
    with (
        OddServer(BIG, send) as cdn,
        OddServer(BIG, lambda handler: redirect(handler, cdn.url, status=308)) as server,
    ):
        node.download(url=server.url)

    assert (node.directory / "model.bin").read_bytes() == BIG


@pytest.mark.parametrize("status", [403, 404])
def test_what_the_head_refuses_is_not_told_as_the_hubs(node_with, status):
    node = node_with(FILES)
    with OddServer(BIG, partial(answer, status=status)) as server, pytest.raises(SparkPipelineError) as caught:
        node.do("download", source=Source(server.url, "pass", direct=True))

    assert caught.value.what.startswith("the head ")


def test_an_address_that_is_not_this_machines_is_told_as_such(node_with):
    node = node_with(FILES)

    with pytest.raises(WeightsError, match=r"cannot listen on 203\.0\.113\.7") as caught:
        node.do("serve", source=Source("", "pass"), listen_on="203.0.113.7")

    assert caught.value.observed == "Cannot assign requested address"


def test_a_file_that_the_head_lost_while_it_serves_is_answered_as_not_there(node_with):
    node = node_with(FILES)
    node.download()
    model = Model(request("serve", node.manifest, str(node.weights_dir)))
    (node.directory / "model.bin").unlink()
    with Server(model, "127.0.0.1", "pass", 1) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        asked = urllib.request.Request(f"http://127.0.0.1:{server.server_address[1]}/model.bin")
        asked.add_header("Authorization", "Bearer pass")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked, timeout=5)
        server.shutdown()


def _as_in_python_3_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its redirect handler has no http_error_308, and refuses the code if asked all the same."""
    handler = urllib.request.HTTPRedirectHandler
    real = handler.redirect_request

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if code == 308:
            raise urllib.error.HTTPError(req.full_url, code, msg, headers, fp)
        return real(self, req, fp, code, msg, headers, newurl)

    monkeypatch.delattr(handler, "http_error_308", raising=False)
    monkeypatch.setattr(handler, "redirect_request", redirect_request)
