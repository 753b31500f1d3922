"""Names and addresses of the lab are a contract: fleets and tests are written against them."""

from __future__ import annotations

import json
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from spark_pipeline.lab.node import hosts_file
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import MAX_NODES, LabPlan
from spark_pipeline.lab.rootfs import NODE, Recipe
from spark_pipeline.lab.status import LabStatus, NodeStatus

LONGEST_INTERFACE_NAME = 15


def test_names_and_addresses_are_the_agreed_ones() -> None:
    plan = LabPlan()
    found = [(node.name, str(node.management), str(node.fabric), str(node.fabric_twin)) for node in plan.first(3)]
    assert found == [
        ("head", "10.77.0.10", "192.168.200.12", "192.168.201.12"),
        ("peer", "None", "192.168.200.13", "192.168.201.13"),
        ("peer2", "None", "192.168.200.14", "192.168.201.14"),
    ]
    assert (plan.bridge, plan.hub_url, plan.registry_address) == ("labmgmt", "http://10.77.0.1:8090", "10.77.0.1:5000")


def test_interface_names_fit_the_kernel() -> None:
    for plan in (LabPlan(), LabPlan(prefix="labt")):
        names = [plan.bridge, *(node.management_port for node in plan.every() if node.management)]
        names += [f"{node.name}-fabric1" for node in plan.every()]
        assert max(map(len, names)) <= LONGEST_INTERFACE_NAME


def test_two_labs_share_no_name_on_the_host() -> None:
    def names(plan: LabPlan) -> set[str]:
        nodes = plan.every()
        found = {plan.bridge, plan.fabric_namespace, plan.hub_url, plan.registry_address}
        return found | {node.namespace for node in nodes} | {node.management_port for node in nodes}

    second = LabPlan(prefix="labt", management=IPv4Network("10.78.0.0/24"))
    assert not names(LabPlan()) & names(second)


@pytest.mark.parametrize("index", [-1, MAX_NODES])
def test_no_node_beyond_the_plan(index: int) -> None:
    with pytest.raises(ValueError, match="a lab has nodes 0 to 7"):
        LabPlan().node(index)


def test_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert LabPaths.default().key == tmp_path / "spark_pipeline/lab/ssh/id_ed25519"
    beside = LabPaths.beside("labt")
    assert beside.roots == LabPaths.default().roots
    assert beside.nodes != LabPaths.default().nodes


def test_a_nodes_own_name_is_a_loopback_address_as_on_the_real_machine() -> None:
    head, peer = LabPlan().first(2)
    assert hosts_file(peer, (head, peer)).splitlines() == [
        "127.0.0.1 localhost",
        "127.0.1.1 peer",
        "::1 localhost ip6-localhost ip6-loopback",
        "192.168.200.12 head",
    ]


def test_a_root_is_known_by_its_content() -> None:
    assert Recipe("a", ("x", "y")).digest == Recipe("a", ("y", "x")).digest
    others = {Recipe("a", ("x",)).digest, Recipe("a", ("x", "y")).digest, Recipe("a", ("x",), setup="true").digest}
    assert len(others) == len({*others, NODE.digest}) - 1


def test_status_json_is_one_document_with_the_verdict() -> None:
    node = NodeStatus("head", "10.77.0.10", "192.168.200.12", "192.168.201.12", 7, True, False, None)
    status = LabStatus((node,), "http://h", True, "r", True, Path("/k"), "spark")
    document = json.loads(status.to_json())
    assert document["up"] is False
    assert document["nodes"][0]["docker_ok"] is False
    assert document["key"] == "/k"
    assert "docker does not answer" in status.to_text()


def test_a_lab_without_nodes_is_not_up() -> None:
    status = LabStatus((), "http://h", True, "r", True, Path("/k"), "spark")
    assert not status.up
    assert "spark-pipeline lab up" in status.to_text()
