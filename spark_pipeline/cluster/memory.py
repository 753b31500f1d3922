"""How much of each node's memory the engine may take, where CPU and GPU share it.

On a GB10 nvidia-smi reports no memory at all; /proc/meminfo is the truth. `gpu_memory_utilization` is a share of the
total, so what the system holds must be taken off first: at 0.9 a Spark runs out while loading, at 0.94 sshd dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_pipeline.errors import ClusterError
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.spec.fleet import Accelerator

# Normal serving leaves 6 to 18 GiB on a GB10; engines died after hours where less than 8 was left.
RESERVE_BYTES = 10 * 2**30
# CUDA was seen with as little as 102 of 121.7 GiB free on an idle GB10, whatever /proc/meminfo said: vLLM refuses to
# start when its share is more than what is free, so 0.84 already fails on some machines.
CEILING = 0.83
# Beside its weights a rank needs room for activations, CUDA graphs, NCCL's buffers and at least some KV cache.
WORKING_BYTES = 6 * 2**30
# The part of it that is not KV cache.
ACTIVATION_BYTES = 3 * 2**30
# Without an accelerator the KV cache is what VLLM_CPU_KVCACHE_SPACE says, 1 GiB in the lab.
CPU_WORKING_BYTES = 2**30
MAX_NODES = 64


@dataclass(frozen=True)
class MemoryShare:
    """`utilization`: share of the total for the engine, 0 to 1, down to two digits; `reason` says from what."""

    utilization: float
    reason: str


def utilization(nodes: Sequence[NodeFacts], *, occupied: bool) -> MemoryShare:
    """The share that the tightest node can give: (MemAvailable - 10 GiB) / MemTotal, at most 0.83.

    One value for all ranks: the engine sizes its KV cache by the smallest rank anyway.

    Args:
        occupied: an earlier generation still holds memory that will be free when it is gone; what is available now
            says nothing then, and the ceiling stands in until it can be measured.
    """
    if occupied:
        return MemoryShare(
            CEILING,
            f"gpu_memory_utilization {CEILING}: an estimate, measured anew when the earlier generation is gone",
        )
    shares = [((facts.memory_available_bytes - RESERVE_BYTES) / facts.memory_total_bytes, facts) for facts in nodes]
    share, tightest = min(shares, key=lambda item: item[0])
    value = int(max(min(share, CEILING), 0.0) * 100) / 100
    return MemoryShare(
        value,
        f"gpu_memory_utilization {value:.2f}: {tightest.node} has {human_bytes(tightest.memory_available_bytes)} "
        f"available of {human_bytes(tightest.memory_total_bytes)}, {human_bytes(RESERVE_BYTES)} stay with the system, "
        f"ceiling {CEILING}",
    )


@dataclass(frozen=True)
class Demand:
    """What is asked of the nodes' memory.

    Args:
        accelerator: of the fleet.
        weights_bytes: of the whole model, spread evenly over the ranks.
        cache_bytes: ranks -> KV cache that each of them needs for one request of the greatest length; 0: not known.
        declared_share: `gpu_memory_utilization` where it is declared; None: `auto`.
        occupied: containers of this very deployment run there: what they hold will be free when they are gone.
    """

    accelerator: Accelerator
    weights_bytes: int
    cache_bytes: Callable[[int], int] = lambda _: 0
    declared_share: float | None = None
    occupied: bool = False


@dataclass(frozen=True)
class Layout:
    """The model spread evenly over so many nodes.

    Args:
        needs_bytes: of each node: its share of the weights, and room to work with.
        has_bytes: what the tightest of the nodes can give.
        node: which one that is.
    """

    nodes: int
    needs_bytes: int
    has_bytes: int
    node: str

    @property
    def fits(self) -> bool:
        return self.needs_bytes <= self.has_bytes

    def text(self) -> str:
        """'2 nodes: each needs 68.5 GB, head has 106.2 GB: fits'."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return (
            f"{nodes}: each needs {human_bytes(self.needs_bytes)}, {self.node} has {human_bytes(self.has_bytes)}: "
            + ("fits" if self.fits else "does not fit")
        )


def layouts(nodes: Sequence[NodeFacts], demand: Demand) -> tuple[Layout, ...]:
    """The model on 1, 2, 4, ... nodes and on all that there are; further, until it fits.

    Beyond the given nodes the tightest of them stands for the others.

    Args:
        nodes: those of the deployment, in rank order.
    """
    found: list[Layout] = []
    for count in sorted({len(nodes), *(2**power for power in range(MAX_NODES.bit_length()))}):
        if count > len(nodes) and any(layout.fits for layout in found):
            break
        room, node = min((_room_bytes(facts, demand), facts.node) for facts in nodes[:count])
        found.append(Layout(count, int(demand.weights_bytes / count + _working_bytes(demand, count)), int(room), node))
    return tuple(found)


def refuse_what_does_not_fit(nodes: Sequence[NodeFacts], demand: Demand) -> None:
    """The scenario's first failure: 125 GB served by one Spark, found out after most of an hour of loading.

    Raises:
        ClusterError: names the node, what a rank needs and has, and the smallest layout that would fit.
    """
    found = layouts(nodes, demand)
    layout = next(layout for layout in found if layout.nodes == len(nodes))
    if layout.fits:
        return
    tightest = next(facts for facts in nodes if facts.node == layout.node)
    weights = demand.weights_bytes / layout.nodes
    raise ClusterError(
        "the model does not fit into the node's memory",
        node=layout.node,
        observed=f"each of {layout.nodes} rank(s) needs {human_bytes(layout.needs_bytes)}: {human_bytes(weights)} of "
        f"weights and {human_bytes(layout.needs_bytes - weights)} to work with; the node can give "
        f"{human_bytes(layout.has_bytes)} of {human_bytes(tightest.memory_total_bytes)}, "
        f"{human_bytes(tightest.memory_available_bytes)} available now",
        remedy=more_room(nodes, demand),
    )


def more_room(nodes: Sequence[NodeFacts], demand: Demand) -> str:
    """What helps where the model does not fit on these nodes."""
    idle = replace(demand, occupied=True)  # as if nothing else were running there
    smallest = next((layout.nodes for layout in layouts(nodes, idle) if layout.fits), None)
    if smallest is None:
        return f"no layout of up to {MAX_NODES} such nodes fits: take a smaller or more quantised model"
    if smallest <= len(nodes):
        return "free memory there: `docker ps`, `ps -eo rss,args --sort=-rss | head`"
    return (
        f"spread it over more nodes: `parallel: {{tensor: {smallest}}}` is the smallest layout that fits such nodes; "
        "or take a smaller or more quantised model"
    )


def _working_bytes(demand: Demand, ranks: int) -> int:
    if demand.accelerator is Accelerator.NONE:
        return CPU_WORKING_BYTES
    return max(WORKING_BYTES, ACTIVATION_BYTES + demand.cache_bytes(ranks))


def _room_bytes(facts: NodeFacts, demand: Demand) -> float:
    """What the engine may take of one node."""
    total, available = facts.memory_total_bytes, facts.memory_available_bytes
    if demand.accelerator is Accelerator.NONE:
        return CEILING * total if demand.occupied else available
    share = CEILING if demand.declared_share is None else demand.declared_share
    if demand.occupied:
        return share * total
    reserve = RESERVE_BYTES if demand.declared_share is None else 0
    return min(share * total, available - reserve)
