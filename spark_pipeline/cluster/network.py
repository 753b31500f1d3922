"""Each rank's own environment: its address, and the interface and HCAs that lead to the others.

Every name here may differ from node to node (another cable, another port), so no rank may inherit them from another:
vLLM's Ray executor copies the driver's environment to its workers, except the names listed in
`$VLLM_CONFIG_ROOT/ray_non_carry_over_env_vars.json` (cluster/bootstrap.sh writes that file).
"""

from __future__ import annotations

from spark_pipeline.errors import ClusterError
from spark_pipeline.fleet.facts import NodeFacts

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
        hcas = facts.fabric_hcas(fabric)
        if hcas:
            environment["NCCL_IB_HCA"] = ",".join(hca.device for hca in hcas)
            indexes = {hca.gid_index for hca in hcas if hca.gid_index is not None}
            if len(indexes) == 1:
                # One index for all HCAs or none: where they differ NCCL's own choice (-1) is right more often.
                environment["NCCL_IB_GID_INDEX"] = str(indexes.pop())
    return environment
