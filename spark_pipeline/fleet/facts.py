"""What a machine is: one round trip, plain text, and a pure reader of it.

The text that `record` returns can be kept in a file and read again by `parse`, so plans for machines that cannot be
reached (the user's own two Sparks) are tested from recordings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import IPv4Address, IPv4Interface

from spark_pipeline.errors import MachineError
from spark_pipeline.fleet.host import Host

_SECONDS = 60.0  # `docker info` and `nvidia-smi` take seconds on a busy machine
# The PCI domain in a name: enP2p1s0f1np1 and enp1s0f1np1 are the two PCIe functions of one QSFP port of a Spark.
_DOMAIN = re.compile(r"^(en|roce)P\d+(?=p)")
_MAPPED = re.compile(r"^0000:0000:0000:0000:0000:ffff:([0-9a-f]{4}):([0-9a-f]{4})$")


@dataclass(frozen=True)
class Interface:
    """A network interface.

    Args:
        ipv4: its addresses with their prefix: '192.168.200.12/24'.
        carrier: whether a cable with a live other end is in it.
    """

    name: str
    ipv4: tuple[str, ...]
    mtu: int
    carrier: bool

    def carries(self, address: str) -> bool:
        """Whether this is one of its own addresses."""
        return any(one.partition("/")[0] == address for one in self.ipv4)


@dataclass(frozen=True)
class Hca:
    """A RoCE device (one port of it).

    Args:
        netdev: the interface that it belongs to.
        active: whether its port is ACTIVE.
        gid_index: of the RoCE v2 GID that is the IPv4 address of the interface; None when there is none.
    """

    device: str
    netdev: str
    active: bool
    gid_index: int | None


@dataclass(frozen=True)
class Gpu:
    """An accelerator. Its memory is not here: on GB10 nvidia-smi says '[N/A]', and /proc/meminfo is the truth."""

    name: str
    driver: str


@dataclass(frozen=True)
class NodeFacts:
    """One machine.

    Args:
        machine_id: of systemd, None where there is none.
        architecture: of the kernel: 'aarch64', 'x86_64'.
        weights_free_bytes: on the file system of the weights directory, or of its nearest parent that exists.
        docker_root: where the engine keeps images; None, as the two that follow, when it cannot be used.
        docker_problem: why it cannot be used, in Docker's own words; '' when it can.
        infiniband: RoCE devices, empty where there are none.
        python_version: of `python3`, None when there is none.
        rsync: whether it is installed.
        user: the login, with its ids and the groups that this login really has.
    """

    node: str
    hostname: str
    machine_id: str | None
    architecture: str
    kernel: str
    cores: int
    memory_total_bytes: int
    memory_available_bytes: int
    weights_free_bytes: int
    docker_root: str | None
    docker_free_bytes: int | None
    docker_version: str | None
    docker_problem: str
    interfaces: tuple[Interface, ...]
    infiniband: tuple[Hca, ...]
    gpu: Gpu | None
    python_version: str | None
    rsync: bool
    user: str
    uid: int
    gid: int
    groups: tuple[str, ...]

    def interface_of(self, address: str | IPv4Address) -> Interface | None:
        """The interface that carries this address."""
        return next((item for item in self.interfaces if item.carries(str(address))), None)

    def fabric_hcas(self, address: str | IPv4Address) -> tuple[Hca, ...]:
        """The live RoCE devices of the port that carries this address: its own first, then its twin.

        A Spark's QSFP port is two PCIe functions, and only both together reach 200 Gb/s. A device that is down must
        not be named to NCCL: the first collective would stall (seen after warm reboots).
        """
        fabric = self.interface_of(address)
        if fabric is None:
            return ()
        up = {item.name for item in self.interfaces if item.carrier}
        port = _without_domain(fabric.name)
        twins = [hca for hca in self.infiniband if _without_domain(hca.netdev) == port and hca.active]
        live = [hca for hca in twins if hca.netdev in up]
        return tuple(sorted(live, key=lambda hca: (hca.netdev != fabric.name, hca.device)))


def observe(host: Host, weights_dir: str) -> NodeFacts:
    """Ask a machine what it is, in one round trip.

    Raises:
        MachineError: it cannot be asked. That something is missing on it is no error.
    """
    return parse(host.name, record(host, weights_dir))


def record(host: Host, weights_dir: str) -> str:
    """The text that `parse` reads."""
    script = files("spark_pipeline.fleet").joinpath("facts.sh").read_text(encoding="utf-8")
    return host.run(["sh", "-s", "--", weights_dir], input=script, timeout=_SECONDS).stdout


def parse(node: str, text: str) -> NodeFacts:
    """Read what facts.sh printed.

    Raises:
        MachineError: a part that every Linux machine has is missing.
    """
    sections = _sections(text)
    try:
        return _facts(node, sections)
    except (LookupError, ValueError) as error:
        raise MachineError(
            "the machine's facts cannot be read",
            node=node,
            observed=f"{error!r} in: {text[:500]}",
            remedy="the node must be Linux with /proc, coreutils and a POSIX sh",
        ) from error


def _facts(node: str, sections: dict[str, list[str]]) -> NodeFacts:
    memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in sections["memory"]}
    docker = sections.get("docker", [])
    version, root = docker[0].split(" ", 1) if docker else (None, None)
    user, uid, gid = sections["user"]
    interfaces = _interfaces(sections["addresses"], sections["links"])
    return NodeFacts(
        node=node,
        hostname=sections["hostname"][0],
        machine_id=machine_id if (machine_id := sections["machine_id"][0]) != "?" else None,
        architecture=sections["architecture"][0],
        kernel=sections["kernel"][0],
        cores=int(sections["cores"][0]),
        memory_total_bytes=memory["MemTotal"],
        memory_available_bytes=memory["MemAvailable"],
        weights_free_bytes=_free_bytes(sections["weights_free"]),
        docker_root=root,
        docker_free_bytes=_free_bytes(sections["docker_free"]) if root else None,
        docker_version=version,
        docker_problem="\n".join(sections.get("docker_problem", [])),
        interfaces=interfaces,
        infiniband=_infiniband(sections["infiniband"], interfaces),
        gpu=_gpu(sections["gpu"]),
        python_version=next(iter(sections["python"]), None),
        rsync=bool(sections["rsync"]),
        user=user,
        uid=int(uid),
        gid=int(gid),
        groups=tuple(sections["groups"][0].split()),
    )


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            lines = sections.setdefault(line[3:].strip(), [])
        elif line.strip():
            lines.append(line.strip())
    return sections


def _free_bytes(lines: list[str]) -> int:
    """`df -Pk`: 'file system, 1024-blocks, used, available, capacity, mount point'; names may hold blanks."""
    match = re.search(r"\s(\d+)\s+(\d+)\s+(\d+)\s+\d+%\s", lines[-1])
    if match is None:
        raise ValueError(f"no df line: {lines[-1]}")
    return int(match[3]) * 1024


def _interfaces(addresses: list[str], links: list[str]) -> tuple[Interface, ...]:
    """`ip -o -4 addr` ('2: enp1s0f1np1    inet 192.168.200.12/24 brd ...') and 'name mtu carrier' of sysfs."""
    ipv4: dict[str, list[str]] = {}
    for line in addresses:
        words = line.split()
        ipv4.setdefault(words[1], []).append(str(IPv4Interface(words[words.index("inet") + 1])))
    found = []
    for line in links:
        name, mtu, carrier = line.split()  # '?': the carrier of an interface that is down cannot be read
        found.append(Interface(name, tuple(ipv4.get(name, ())), int(mtu), carrier == "1"))
    return tuple(found)


def _infiniband(lines: list[str], interfaces: tuple[Interface, ...]) -> tuple[Hca, ...]:
    """'device port index|netdev|state|gid|type': the GID rule of sparkrun's ib_detect.sh (RoCE v2, IPv4-mapped).

    A node may have several such GIDs on one port, so the one is taken whose address is the interface's own.
    """
    by_name = {item.name: item for item in interfaces}
    devices: dict[tuple[str, str], Hca] = {}
    for line in lines:
        words, netdev, state, gid, kind = line.split("|")
        device, _, index = words.split()
        known = devices.get((device, netdev), Hca(device, netdev, "ACTIVE" in state, None))
        address = _mapped_address(gid)
        interface = by_name.get(netdev)
        fits = kind == "RoCE v2" and address is not None and interface is not None and interface.carries(address)
        if fits and (known.gid_index is None or int(index) < known.gid_index):
            known = Hca(device, netdev, known.active, int(index))
        devices[device, netdev] = known
    return tuple(devices.values())


def _mapped_address(gid: str) -> str | None:
    match = _MAPPED.match(gid)
    return str(IPv4Address(int(match[1] + match[2], 16))) if match else None


def _gpu(lines: list[str]) -> Gpu | None:
    if not lines or "," not in lines[0]:
        return None
    name, driver = (word.strip() for word in lines[0].split(",")[:2])
    return Gpu(name, driver)


def _without_domain(name: str) -> str:
    return _DOMAIN.sub(r"\1", name)
