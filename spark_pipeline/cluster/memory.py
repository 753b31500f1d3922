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

# Normal serving leaves 6 to 18 GiB on a GB10; engines died after hours where less than 8 was left.
RESERVE_BYTES = 10 * 2**30
# CUDA was seen with as little as 102 of 121.7 GiB free on an idle GB10, whatever /proc/meminfo said: vLLM refuses to
# start when its share is more than what is free, so 0.84 already fails on some machines.
CEILING = 0.83
FLOOR = 0.10


@dataclass(frozen=True)
class MemoryShare:
    """`utilization`: share of the total for the engine, 0 to 1, down to two digits; `reason` says from what."""

    utilization: float
    reason: str


def utilization(nodes: Sequence[NodeFacts]) -> MemoryShare:
    """The share that the tightest node can give: (MemAvailable - 10 GiB) / MemTotal, at most 0.83.

    One value for all ranks: the engine sizes its KV cache by the smallest rank anyway.

    Raises:
        ClusterError: a node has too little free memory to start anything.
    """
    shares = [((facts.memory_available_bytes - RESERVE_BYTES) / facts.memory_total_bytes, facts) for facts in nodes]
    share, tightest = min(shares, key=lambda item: item[0])
    if share < FLOOR:
        raise ClusterError(
            "too little free memory to start an engine",
            node=tightest.node,
            observed=f"{human_bytes(tightest.memory_available_bytes)} available of "
            f"{human_bytes(tightest.memory_total_bytes)}, of which {human_bytes(RESERVE_BYTES)} stay with the system",
            remedy="stop what else uses memory there: `docker ps`, `ps -eo rss,args --sort=-rss | head`",
        )
    value = int(min(share, CEILING) * 100) / 100
    return MemoryShare(
        value,
        f"gpu_memory_utilization {value:.2f}: {tightest.node} has {human_bytes(tightest.memory_available_bytes)} "
        f"available of {human_bytes(tightest.memory_total_bytes)}, {human_bytes(RESERVE_BYTES)} stay with the system, "
        f"ceiling {CEILING}",
    )
