from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.errors import MachineError
from spark_pipeline.fleet import facts
from spark_pipeline.fleet.facts import Gpu, Hca, NodeFacts
from spark_pipeline.fleet.local import LocalHost

RECORDED = Path(__file__).parents[2] / "recorded" / "sparks"


def spark(name: str = "head") -> str:
    return (RECORDED / f"{name}.txt").read_text()


def parse(text: str) -> NodeFacts:
    return facts.parse("head", text)


def test_a_spark_is_read_from_its_recording() -> None:
    found = parse(spark())

    assert (found.node, found.hostname, found.architecture, found.cores) == ("head", "spark-head", "aarch64", 20)
    assert found.memory_total_bytes == pytest.approx(121.7 * 2**30, rel=0.001)
    assert found.memory_available_bytes == pytest.approx(111 * 2**30, rel=0.001)
    assert found.gpu == Gpu("NVIDIA GB10", "580.95.05")
    assert found.docker_version == "28.5.1"
    assert found.docker_root == "/var/lib/docker"
    assert found.weights_free_bytes == 2871043212 * 1024
    assert found.python_version == "3.12.3"
    assert found.rsync
    assert (found.user, found.uid) == ("aurora", 1000)
    assert "docker" in found.groups


def test_the_interface_of_an_address_is_found_by_the_whole_address() -> None:
    found = parse(spark())

    fabric = found.interface_of("192.168.200.12")
    assert fabric is not None
    assert (fabric.name, fabric.mtu, fabric.carrier) == ("enp1s0f1np1", 9000, True)
    assert found.interface_of("192.168.200.1") is None


def test_both_devices_of_the_fabrics_port_are_found_its_own_first() -> None:
    for name, address in (("head", "192.168.200.12"), ("peer", "192.168.200.13")):
        hcas = parse(spark(name)).fabric_hcas(address)

        assert [(hca.device, hca.gid_index) for hca in hcas] == [("rocep1s0f1", 3), ("roceP2p1s0f1", 3)]


def test_a_device_without_a_cable_is_not_offered() -> None:
    text = spark().replace("enP2p1s0f1np1 9000 1", "enP2p1s0f1np1 9000 0")

    assert [hca.device for hca in parse(text).fabric_hcas("192.168.200.12")] == ["rocep1s0f1"]


def test_the_other_port_of_the_card_is_no_twin() -> None:
    text = spark().replace("enp1s0f0np0 1500 0", "enp1s0f0np0 1500 1").replace("1: DOWN", "4: ACTIVE")

    devices = [hca.device for hca in parse(text).fabric_hcas("192.168.200.12")]

    assert devices == ["rocep1s0f1", "roceP2p1s0f1"]


def test_the_gid_is_that_of_the_interfaces_own_address() -> None:
    """An interface may keep GIDs of addresses it had, or has besides (seen: index 5, not 3)."""
    other = "0000:0000:0000:0000:0000:ffff:a9fe:0102"  # 169.254.1.2
    text = (
        spark()
        .replace("rocep1s0f1 1 2|", f"rocep1s0f1 1 2|enp1s0f1np1|4: ACTIVE|{other}|RoCE v2\nrocep1s0f1 1 4|")
        .replace("rocep1s0f1 1 3|", "rocep1s0f1 1 5|")
    )

    (own, _) = parse(text).fabric_hcas("192.168.200.12")

    assert own.gid_index == 5


def test_a_roce_v1_gid_never_counts() -> None:
    text = "\n".join(line for line in spark().splitlines() if not ("rocep1s0f1 1 3" in line and "RoCE v2" in line))

    (own, _) = parse(text).fabric_hcas("192.168.200.12")

    assert own.gid_index is None


def test_an_address_that_no_interface_has_leads_to_no_device() -> None:
    assert parse(spark()).fabric_hcas("192.168.200.99") == ()


def test_a_machine_without_the_optional_parts_is_read() -> None:
    bare = """## hostname
box
## machine_id
?
## architecture
x86_64
## kernel
6.1.0
## cores
2
## memory
MemTotal:        1000 kB
MemAvailable:     500 kB
## weights_free
/dev/my disk  100 60 40      60% /
## docker
## docker_problem
sh: 1: docker: not found
## addresses
## links
lo 65536 1
## infiniband
## gpu
## python
## rsync
## user
me
1000
1000
## groups
me
## end
"""
    found = parse(bare)

    assert found.machine_id is None, "two machines without an id are not the same machine"
    assert (found.docker_version, found.docker_root, found.docker_free_bytes) == (None, None, None)
    assert "not found" in found.docker_problem
    assert (found.gpu, found.infiniband, found.python_version, found.rsync) == (None, (), None, False)
    assert found.weights_free_bytes == 40 * 1024


def test_text_that_is_no_recording_is_refused_with_what_was_seen() -> None:
    with pytest.raises(MachineError, match="cannot be read") as caught:
        parse("bash: line 1: something: command not found\n")

    assert "command not found" in caught.value.observed


def test_this_machine_is_observed_in_one_command(tmp_path: Path) -> None:
    import os
    import platform

    found = facts.observe(LocalHost("here"), str(tmp_path / "not" / "yet" / "made"))

    assert (found.hostname, found.architecture) == (platform.node(), platform.machine())
    assert found.cores == os.cpu_count() or found.cores == len(os.sched_getaffinity(0))
    assert found.weights_free_bytes == pytest.approx(
        os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.05
    )
    assert any(item.name == "lo" for item in found.interfaces)
    assert (found.docker_version is None) == (found.docker_problem != "")


def test_roce_devices_are_read_as_sysfs_shows_them(tmp_path: Path) -> None:
    """The driver's tree: an index that is not in use exists, but cannot be read (here: a directory)."""
    port = tmp_path / "class" / "infiniband" / "rocep1s0f1" / "ports" / "1"
    for name in ("gid_attrs/ndevs", "gid_attrs/types", "gids"):
        (port / name).mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    gids = ("fe80:0000:0000:0000:4abb:2dff:fe5b:90a2", "0000:0000:0000:0000:0000:ffff:c0a8:c80c")
    for index, gid in enumerate(gids):
        (port / "gid_attrs" / "ndevs" / str(index)).write_text("enp1s0f1np1\n")
        (port / "gid_attrs" / "types" / str(index)).write_text("RoCE v2\n")
        (port / "gids" / str(index)).write_text(f"{gid}\n")
    (port / "gid_attrs" / "ndevs" / "2").mkdir()
    net = tmp_path / "class" / "net" / "enp1s0f1np1"
    net.mkdir(parents=True)
    (net / "mtu").write_text("9000\n")
    (net / "carrier").write_text("1\n")
    script = Path(facts.__file__).with_name("facts.sh").read_text()

    text = LocalHost("here").run(["sh", "-s", "--", "/", str(tmp_path)], input=script, timeout=30).stdout
    text = text.replace("## links", "4: enp1s0f1np1    inet 192.168.200.12/24 scope global enp1s0f1np1\n## links")
    found = facts.parse("here", text)

    assert found.infiniband == (Hca("rocep1s0f1", "enp1s0f1np1", active=True, gid_index=1),)
    assert found.fabric_hcas("192.168.200.12") == found.infiniband


def test_a_recording_is_read_like_the_machine_itself(tmp_path: Path) -> None:
    text = facts.record(LocalHost("here"), str(tmp_path))

    again = replace(facts.parse("here", text), memory_available_bytes=0)

    assert again == replace(facts.parse("here", text), memory_available_bytes=0)
    assert text.rstrip().endswith("## end"), "a cut recording would be noticed"
