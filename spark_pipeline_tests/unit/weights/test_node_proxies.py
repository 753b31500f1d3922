"""A proxy of the node's environment stands between it and the hub, and never between two nodes."""

from __future__ import annotations

import os

import pytest

from spark_pipeline.errors import HubError
from spark_pipeline.weights.node.messages import Source
from spark_pipeline_tests.unit.weights.odd_server import OddServer, Proxy, answer, first, redirect, self_signed, send

BIG = os.urandom(400_000)
FILES = {"model.bin": BIG}


@pytest.fixture
def node(node_with):
    return node_with(FILES)


@pytest.fixture
def proxy(node, monkeypatch: pytest.MonkeyPatch):
    """In the node's environment; the hub's own client, on the orchestrator, has done its part by then."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Proxy() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        yield proxy


def test_the_hub_is_asked_by_the_proxy(node, hub, proxy):
    node.download()

    assert (node.directory / "model.bin").read_bytes() == BIG
    assert [url.startswith(hub.url) for url in proxy.seen] == [True]


def test_the_head_is_asked_without_it_and_the_password_with_it(node, proxy):
    with OddServer(BIG, send) as head:
        source = Source(head.url, "pass", direct=True)
        node.do("download", source=source)
        node.do("done", source=Source(head.url, "pass"))

    assert head.tokens == ["Bearer pass"]
    assert proxy.seen == []


@pytest.mark.parametrize(("status", "said"), [(401, "refuses"), (403, "refuses"), (404, "any more"), (410, "any more")])
def test_what_the_hub_refuses_ends_it_at_once_behind_a_proxy_too(node, proxy, status, said):
    with (
        OddServer(BIG, lambda handler: answer(handler, status)) as server,
        pytest.raises(HubError, match=said),
    ):
        node.download(url=server.url)

    assert len(server.ranges) == 1


def test_the_token_outlives_a_redirect_within_the_hub_and_no_other(node, proxy):
    with OddServer(BIG, send) as cdn, OddServer(BIG, send) as server:
        server.act = first(lambda asked: redirect(asked, server.url), then=lambda asked: redirect(asked, cdn.url))
        node.download(url=server.url, token="hf_secret")

    assert server.tokens == ["Bearer hf_secret", "Bearer hf_secret"]
    assert cdn.tokens == [""]


def test_a_certificate_that_nobody_vouches_for_is_told_as_the_hubs(node, proxy, tmp_path):
    with (
        OddServer(BIG, send, certificate=self_signed(tmp_path)) as server,
        pytest.raises(HubError, match=rf"\] {server.address} shows no valid certificate"),
    ):
        node.download(url=server.url, token="hf_secret")

    assert proxy.seen[-1] == server.address
    assert server.tokens == []
