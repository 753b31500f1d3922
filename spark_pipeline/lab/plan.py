"""Names and addresses of one lab. Pure: everything else asks here, nothing is written twice."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

MAX_NODES = 8
MTU = 9000  # on both ends of every fabric link: with 9000 on one end only, ping works and ssh dies in key exchange

_MANAGEMENT = IPv4Network("10.77.0.0/24")
_FABRIC = IPv4Network("192.168.200.0/24")
_FABRIC_TWIN = IPv4Network("192.168.201.0/24")


@dataclass(frozen=True)
class NodePlan:
    """One node: what it is called everywhere, and where it can be reached."""

    name: str
    namespace: str  # of the network, as `ip netns` shows it
    cgroup: str  # parent of all its containers, below the cgroup root
    management: IPv4Address | None  # the head alone has one
    management_port: str  # host end of the management link, a port of the bridge
    fabric: IPv4Address
    fabric_twin: IPv4Address


@dataclass(frozen=True)
class LabPlan:
    """One lab. A second one beside it needs another `prefix` and another `management` network.

    The fabric lives in a namespace of its own, so two labs may use the same fabric addresses.
    """

    prefix: str = "lab"
    management: IPv4Network = _MANAGEMENT
    fabric: IPv4Network = _FABRIC
    fabric_twin: IPv4Network = _FABRIC_TWIN
    hub_port: int = 8090
    registry_port: int = 5000

    @property
    def bridge(self) -> str:
        """Management bridge on the host."""
        return f"{self.prefix}mgmt"

    @property
    def fabric_namespace(self) -> str:
        """Namespace that holds the fabric's bridges, so that the host cannot reach the peers."""
        return f"{self.prefix}-fabric"

    @property
    def host_address(self) -> IPv4Address:
        """The orchestrator, the hub and the registry, as the head sees them."""
        return self.management[1]

    @property
    def hub_url(self) -> str:
        """Base URL of the hub."""
        return f"http://{self.host_address}:{self.hub_port}"

    @property
    def registry_address(self) -> str:
        """`host:port` of the registry, as it stands in image names."""
        return f"{self.host_address}:{self.registry_port}"

    def node(self, index: int) -> NodePlan:
        """Node `index`: 0 is the head, 1 `peer`, 2 `peer2`, 3 `peer3`."""
        if not 0 <= index < MAX_NODES:
            raise ValueError(f"a lab has nodes 0 to {MAX_NODES - 1}, not {index}")
        name = "head" if index == 0 else "peer" if index == 1 else f"peer{index}"
        return NodePlan(
            name=name,
            namespace=f"{self.prefix}-{name}",
            cgroup=f"{self.prefix}-{name}",
            management=self.management[10] if index == 0 else None,
            management_port=f"{self.prefix}-{name}-m",
            fabric=self.fabric[12 + index],
            fabric_twin=self.fabric_twin[12 + index],
        )

    def first(self, count: int) -> tuple[NodePlan, ...]:
        """The first `count` nodes."""
        return tuple(self.node(index) for index in range(count))

    def every(self) -> tuple[NodePlan, ...]:
        """Every node this lab could ever have: what cleaning up looks for, whatever was noted or lost."""
        return self.first(MAX_NODES)
