"""The join gate's verdict on who has joined."""

from __future__ import annotations

import pytest

from spark_pipeline.cluster.join import Member, check_members
from spark_pipeline.cluster.plan import Running, plan
from spark_pipeline.errors import JoinError
from spark_pipeline_tests.unit.cluster import samples

HEAD = Member(address="192.168.200.12", hostname="spark-head", accelerators=1)
PEER = Member(address="192.168.200.13", hostname="spark-peer", accelerators=1)


@pytest.fixture
def generation():
    result = plan(samples.target(), samples.facts(), Running(()), joined=None, others=(), last_number=0, run_id="run")
    assert result.generation is not None
    return result.generation


def test_the_declared_nodes_pass(generation):
    check_members(generation, (HEAD, PEER))


@pytest.mark.parametrize(
    ("members", "node", "words"),
    [
        pytest.param((HEAD,), "peer", "did not join: 192.168.200.13", id="the peer is missing"),
        pytest.param((), "head", "2 of 2 ranks did not join", id="nobody"),
        pytest.param(
            (HEAD, PEER, Member(address="10.0.0.9", hostname="x", accelerators=1)), None, "10.0.0.9", id="a stranger"
        ),
        pytest.param(
            (HEAD, PEER.model_copy(update={"hostname": "spark-head"})), None, "one machine", id="both on one machine"
        ),
        pytest.param(
            (HEAD, PEER.model_copy(update={"accelerators": 0})), "peer", "no accelerator", id="a rank without GPU"
        ),
        pytest.param(
            (HEAD, PEER.model_copy(update={"address": "10.1.230.181"})),
            "peer",
            "did not join: 192.168.200.13",
            id="joined with the management address",
        ),
    ],
)
def test_anybody_else_is_refused_by_name(generation, members, node, words):
    with pytest.raises(JoinError) as caught:
        check_members(generation, members)
    assert caught.value.node == node
    assert words in caught.value.what
    assert caught.value.remedy
