"""Links of the virtual fleet: a management bridge with the head alone on it, and a fabric the host cannot reach.

host   labmgmt 10.77.0.1 ─── enP7s7 10.77.0.10 head
head   enp1s0f1np1   192.168.200.12 ─┬─ fabric0, a bridge in a namespace of its own
peer   enp1s0f1np1   192.168.200.13 ─┘
each   enP2p1s0f1np1 192.168.201.x  ─── fabric1, the twin
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from spark_pipeline.lab.commands import run
from spark_pipeline.lab.plan import MTU, LabPlan, NodePlan
from spark_pipeline.lab.processes import boot_id

# As they are called on a DGX Spark: the pipeline looks for these names.
MANAGEMENT_INTERFACE = "enP7s7"
FABRIC_INTERFACE = "enp1s0f1np1"
TWIN_INTERFACE = "enP2p1s0f1np1"

NAMESPACES = Path("/run/netns")
_FOLDER_IS_OURS = "run_netns_is_ours"


def namespaces() -> frozenset[str]:
    """Names of all network namespaces of this machine."""
    return frozenset(path.name for path in NAMESPACES.iterdir()) if NAMESPACES.is_dir() else frozenset()


def links() -> frozenset[str]:
    """Names of the host's own network interfaces."""
    return frozenset(path.name for path in Path("/sys/class/net").iterdir())


def processes_in(namespace: str) -> tuple[int, ...]:
    """Pids of everything that runs in a namespace, containers on its network included."""
    answer = run(["ip", "netns", "pids", namespace], check=False)
    return tuple(int(word) for word in answer.stdout.split())


def owner(plan: LabPlan) -> str:
    """The folder of the lab that made the management bridge; empty when there is none, or none is noted."""
    try:
        return Path(f"/sys/class/net/{plan.bridge}/ifalias").read_text().strip()
    except FileNotFoundError:
        return ""


def route_conflict(plan: LabPlan) -> str:
    """A route of this machine, other than the default and our own, that the management network would cover."""
    shown = run(["ip", "-o", "route", "show", "to", "match", str(plan.host_address)], check=False).stdout
    lines = [line for line in shown.splitlines() if not line.startswith("default") and plan.bridge not in line.split()]
    return lines[0].strip() if lines else ""


def ensure_bridges(plan: LabPlan, folder: Path) -> None:
    """Management bridge on the host, fabric bridges in their namespace; what an interrupted `up` began is completed."""
    if plan.bridge not in links():
        # An address of its own: otherwise a bridge takes one of its ports', and changes it under its neighbours.
        _ip("link", "add", plan.bridge, "address", _mac(plan.host_address), "type", "bridge")
    _ip("link", "set", plan.bridge, "alias", str(folder))
    _ip("addr", "replace", f"{plan.host_address}/{plan.management.prefixlen}", "dev", plan.bridge)
    _ip("link", "set", plan.bridge, "up")
    if plan.fabric_namespace not in namespaces():
        _ip("netns", "add", plan.fabric_namespace)
    for bridge in ("fabric0", "fabric1"):
        if run(["ip", "-n", plan.fabric_namespace, "link", "show", bridge], check=False).returncode != 0:
            _ip_in(plan.fabric_namespace, "link", "add", bridge, "type", "bridge")
        _ip_in(plan.fabric_namespace, "link", "set", bridge, "mtu", str(MTU), "up")


def attach(plan: LabPlan, node: NodePlan) -> None:
    """A namespace for a node and its links. The node's old ones must be gone."""
    _ip("netns", "add", node.namespace)
    _ip_in(node.namespace, "link", "set", "lo", "up")
    if node.management is not None:
        port = ("link", "add", node.management_port, "type", "veth", "peer", "name", MANAGEMENT_INTERFACE)
        _ip(*port, "netns", node.namespace)
        _ip("link", "set", node.management_port, "master", plan.bridge, "up")
        _address(node, MANAGEMENT_INTERFACE, node.management, plan.management)
    for bridge, interface, address, network in (
        ("fabric0", FABRIC_INTERFACE, node.fabric, plan.fabric),
        ("fabric1", TWIN_INTERFACE, node.fabric_twin, plan.fabric_twin),
    ):
        port = f"{node.name}-{bridge}"
        pair = ("link", "add", port, "mtu", str(MTU), "type", "veth", "peer", "name", interface, "mtu", str(MTU))
        _ip_in(plan.fabric_namespace, *pair, "netns", node.namespace)
        _ip_in(plan.fabric_namespace, "link", "set", port, "master", bridge, "up")
        _address(node, interface, address, network)


def detach(plan: LabPlan, node: NodePlan) -> None:
    """Remove a node's links and namespace, as far as they are there. Its processes must be gone."""
    if node.management_port in links():
        _ip("link", "del", node.management_port)
    if plan.fabric_namespace in namespaces():
        # A deleted namespace takes its links along only some time later; the node's next start would meet them.
        for bridge in ("fabric0", "fabric1"):
            run(["ip", "-n", plan.fabric_namespace, "link", "del", f"{node.name}-{bridge}"], check=False)
    if node.namespace in namespaces():
        _delete_namespace(node.namespace)


def remove_bridges(plan: LabPlan) -> None:
    """Remove what `ensure_bridges` made, as far as it is there."""
    if plan.bridge in links():
        _ip("link", "del", plan.bridge)
    if plan.fabric_namespace in namespaces():
        _delete_namespace(plan.fabric_namespace)


def _delete_namespace(name: str) -> None:
    """Also when a machine's crash left the name as a plain file with no namespace behind it."""
    if run(["ip", "netns", "del", name], check=False).returncode != 0:
        (NAMESPACES / name).unlink(missing_ok=True)


def _mac(address: IPv4Address) -> str:
    """A hardware address that follows from the IP address.

    A restarted node has the one it had, as a real machine does. With a new one its neighbours send to the old one
    until their caches expire: half a minute of time-outs.
    """
    return ":".join(f"{byte:02x}" for byte in (0x02, 0x5A, *address.packed))


def _address(node: NodePlan, interface: str, address: IPv4Address, network: IPv4Network) -> None:
    _ip_in(node.namespace, "link", "set", interface, "address", _mac(address))
    _ip_in(node.namespace, "addr", "add", f"{address}/{network.prefixlen}", "dev", interface)
    _ip_in(node.namespace, "link", "set", interface, "up")


def _ip(*words: str) -> None:
    run(["ip", *words])


def _ip_in(namespace: str, *words: str) -> None:
    run(["ip", "-n", namespace, *words])


def mount_points() -> tuple[Path, ...]:
    """Where something is mounted. `os.path.ismount` cannot see a folder that is bound upon itself, as this one is."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return tuple(Path(line.split()[4]) for line in lines)


def is_mounted(folder: Path) -> bool:
    """Whether something is mounted exactly here."""
    return folder.resolve() in mount_points()


def hold_namespace_folder(cache: Path) -> None:
    """Note whether the mount that the first `ip netns add` makes on /run/netns will be ours."""
    if not is_mounted(NAMESPACES):
        (cache / _FOLDER_IS_OURS).write_text(boot_id())


def release_namespace_folder(cache: Path) -> None:
    """Remove that mount once the last namespace is gone, if it is ours. `ip netns del` leaves it."""
    note = cache / _FOLDER_IS_OURS
    if note.exists() and note.read_text() == boot_id() and is_mounted(NAMESPACES) and not namespaces():
        run(["umount", str(NAMESPACES)])
        NAMESPACES.rmdir()
    if not is_mounted(NAMESPACES):
        note.unlink(missing_ok=True)
