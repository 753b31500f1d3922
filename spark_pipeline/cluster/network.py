"""Each rank's own environment: its address, and the interface and HCAs that lead to the others.

Every name here may differ from node to node (another cable, another port), so no rank may inherit them from another:
vLLM's Ray executor copies the driver's environment to its workers, except the names listed in
`$VLLM_CONFIG_ROOT/ray_non_carry_over_env_vars.json` (cluster/bootstrap.sh writes that file).
"""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv4Network

from spark_pipeline.errors import ClusterError
from spark_pipeline.fleet.facts import Hca, NodeFacts

PER_NODE_NAMES = (
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "VLLM_HOST_IP",
)


def rank_environment(facts: NodeFacts, fabric: str, *, accelerated: bool) -> dict[str, str]:
    """The variables that point a rank at the fabric.

    Without VLLM_HOST_IP, vLLM takes the source address of the default route: the management network, or none on a
    node without internet. Without the interface names, Gloo and NCCL take the first interface that is up.

    Args:
        fabric: the node's IPv4 address on the interconnect, as declared.
        accelerated: whether the ranks talk over NCCL.

    Raises:
        ClusterError: no interface of the node carries the declared address.
    """
    interface = facts.interface_of(fabric)
    if interface is None:
        known = ", ".join(f"{item.name} {' '.join(item.ipv4) or 'no IPv4'}" for item in facts.interfaces)
        raise ClusterError(
            f"no interface carries the declared fabric address {fabric}",
            node=facts.node,
            observed=known,
            remedy="give the interface this static address (netplan), or correct `fabric` in the fleet's declaration",
        )
    environment = {"VLLM_HOST_IP": fabric, "GLOO_SOCKET_IFNAME": interface.name}
    if accelerated:
        environment["NCCL_SOCKET_IFNAME"] = interface.name
        hcas, _ = usable_hcas(facts, fabric)
        if hcas:
            environment["NCCL_IB_HCA"] = ",".join(hca.device for hca in hcas)
            indexes = {hca.gid_index for hca in hcas}
            # One index serves all HCAs; where they differ, NCCL's own choice (-1) is right more often.
            if len(indexes) == 1 and (index := indexes.pop()) is not None:
                environment["NCCL_IB_GID_INDEX"] = str(index)
    return environment


def usable_hcas(facts: NodeFacts, fabric: str) -> tuple[tuple[Hca, ...], tuple[str, ...]]:
    """The HCAs that NCCL is given, and why others of the same port are left out, a sentence each.

    A twin without an IPv4 address of its own has no RoCE v2 GID that the other side could route to, and queue pairs
    over it fail; a twin in the fabric interface's own subnet makes collectives hang (spark_clusters.md, C 51).
    """
    found = facts.fabric_hcas(fabric)
    own = facts.interface_of(fabric)
    taken = {_network(address) for address in own.ipv4} if own else set()
    usable: list[Hca] = []
    left_out: list[str] = []
    for hca in found:
        twin = next((item for item in facts.interfaces if item.name == hca.netdev), None)
        is_twin = own is not None and twin is not None and twin.name != own.name
        if is_twin and hca.gid_index is None:
            left_out.append(f"{facts.node}: {hca.device} is left out: {hca.netdev} has no IPv4 address of its own")
        elif is_twin and twin is not None and taken & {_network(address) for address in twin.ipv4}:
            left_out.append(f"{facts.node}: {hca.device} is left out: {hca.netdev} is in the fabric's own subnet")
        else:
            usable.append(hca)
    return tuple(usable), tuple(left_out)


def _network(address: str) -> IPv4Network:
    return IPv4Interface(address).network
