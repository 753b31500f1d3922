"""How much of each node's memory the engine may take, where CPU and GPU share it.

On a GB10 nvidia-smi reports no memory at all; /proc/meminfo is the truth. `gpu_memory_utilization` is a share of the
total, so what the system holds must be taken off first: at 0.9 a Spark runs out while loading, at 0.94 sshd dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
class Layout:
    """The model spread evenly over so many nodes.

    Args:
        needs_bytes: of each node: its share of the weights and room to work.
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


def layouts(
    nodes: Sequence[NodeFacts], accelerator: Accelerator, model_bytes: int, *, occupied: bool
) -> tuple[Layout, ...]:
    """1, 2, 4, ... nodes up to the first that fits, and at least up to all that there are.

    Beyond the fleet's own nodes the tightest of them stands for the others.

    Args:
        nodes: of the whole fleet, in its order.
        occupied: see `utilization`: an earlier generation still holds memory that will be free.
    """
    working = WORKING_BYTES if accelerator is Accelerator.NVIDIA else CPU_WORKING_BYTES
    found: list[Layout] = []
    count = 1
    while not found or count <= len(nodes) or not (found[-1].fits or count > MAX_NODES):
        room, node = min((_room_bytes(facts, accelerator, occupied=occupied), facts.node) for facts in nodes[:count])
        found.append(Layout(count, int(model_bytes / count + working), int(room), node))
        count *= 2
    return tuple(found)


def refuse_what_does_not_fit(nodes: Sequence[NodeFacts], share: float, model_bytes: int) -> None:
    """Weights spread evenly over the ranks, and working room beside them, must fit into every node's share.

    The scenario's first failure: 125 GB served by one Spark, found out after most of an hour of loading.

    Raises:
        ClusterError: names the node, what a rank needs and has, and the smallest layout that would fit.
    """
    tightest = min(nodes, key=lambda facts: facts.memory_available_bytes)
    has = share * min(facts.memory_total_bytes for facts in nodes)
    needs = model_bytes / len(nodes) + WORKING_BYTES
    if needs <= has:
        return
    smallest = layouts(nodes, Accelerator.NVIDIA, model_bytes, occupied=True)[-1]
    if smallest.nodes > len(nodes):
        remedy = f"spread it over more nodes: `parallel: {{tensor: {smallest.nodes}}}` is the smallest that fits"
    else:
        remedy = "free memory there: `docker ps`, `ps -eo rss,args --sort=-rss | head`"
    raise ClusterError(
        "the model does not fit into the node's memory",
        node=tightest.node,
        observed=f"each of {len(nodes)} rank(s) needs {human_bytes(needs)}: {human_bytes(model_bytes / len(nodes))} of "
        f"weights and {human_bytes(WORKING_BYTES)} to work with; its share of {share:.2f} is {human_bytes(has)} of "
        f"{human_bytes(tightest.memory_total_bytes)}, {human_bytes(tightest.memory_available_bytes)} available now",
        remedy=remedy,
    )


def _room_bytes(facts: NodeFacts, accelerator: Accelerator, *, occupied: bool) -> float:
    if accelerator is Accelerator.NONE:
        return facts.memory_total_bytes * CEILING if occupied else facts.memory_available_bytes
    ceiling = CEILING * facts.memory_total_bytes
    return ceiling if occupied else min(ceiling, facts.memory_available_bytes - RESERVE_BYTES)
