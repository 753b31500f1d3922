"""What to do about the containers of a deployment: nothing, or replace them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_pipeline.cluster import commands
from spark_pipeline.cluster.generation import LABEL, Generation, Rank, container_name, labels
from spark_pipeline.cluster.memory import Demand, MemoryShare, refuse_what_does_not_fit, utilization
from spark_pipeline.cluster.network import rank_environment, usable_hcas
from spark_pipeline.cluster.target import Target
from spark_pipeline.errors import ClusterError
from spark_pipeline.fleet.docker import Container
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.fleet.host import shell_text
from spark_pipeline.fleet.plan import Command, StagePlan
from spark_pipeline.spec.deployment import Backend
from spark_pipeline.spec.fleet import Accelerator, Fleet


@dataclass(frozen=True)
class Running:
    """The containers of one deployment as they are on the nodes, whatever their state."""

    containers: tuple[Container, ...]

    @property
    def highest_number(self) -> int:
        return max((generation_of(container) for container in self.containers), default=0)

    @property
    def holds_memory(self) -> bool:
        """Some of them run: what they hold will be free when they are gone."""
        return any(container.state == "running" for container in self.containers)

    def complete(self, target: Target) -> tuple[Container, ...] | None:
        """The containers of the target's spec in rank order, if every rank runs and nothing else of it does."""
        wanted = [item for item in self.containers if item.labels.get(LABEL + "spec_hash") == target.spec_hash]
        by_rank = {item.labels.get(LABEL + "rank"): item for item in wanted if item.state == "running"}
        ranks = [by_rank.get(str(rank)) for rank in range(len(target.nodes))]
        complete = tuple(item for item in ranks if item is not None)
        same_generation = len({generation_of(item) for item in complete}) == 1
        whole = len(complete) == len(target.nodes) == len(self.containers)
        in_place = all(item.node == node.name for item, node in zip(complete, target.nodes, strict=False))
        return complete if whole and same_generation and in_place else None


@dataclass(frozen=True)
class ClusterPlan:
    """`keep`: the generation that already runs as it should; else `remove` goes and `generation` comes."""

    target: Target
    keep: Generation | None
    remove: tuple[Container, ...]
    generation: Generation | None
    reasons: tuple[str, ...]

    def describe(self) -> StagePlan:
        shown: list[Command] = []
        for container in self.remove:
            shown.append(Command(container.node, ("docker", "rm", "--force", container.name)))
        if self.generation is not None:
            script = shell_text([commands.bootstrap()])
            for rank in self.generation.ranks:
                text = shell_text(rank.run).replace(script, '"$(cat spark_pipeline/cluster/bootstrap.sh)"')
                shown.append(Command(rank.node, rank.run, shown=text))
        return StagePlan("ray_cluster", self.keep is None, self.reasons, tuple(shown))


def plan(
    target: Target,
    facts: Mapping[str, NodeFacts],
    running: Running,
    *,
    joined: Generation | None,
    others: Sequence[Container],
    last_number: int,
    run_id: str,
) -> ClusterPlan:
    """Keep what already runs as asked for; otherwise a new generation.

    Args:
        facts: by node name; not looked at when `joined` is given.
        joined: the generation behind the target's running containers, if it is ours and its ranks did join.
        others: running containers of other deployments on the same nodes.
        last_number: highest generation number ever written down; numbers are never used twice.

    Raises:
        ClusterError: the nodes cannot carry the deployment: accelerator missing or taken, memory, fabric address.
    """
    if joined is not None:
        reason = f"generation {joined.number} already runs as declared on every node"
        return ClusterPlan(target, joined, (), None, (reason,))
    _refuse_missing_accelerator(target, facts)
    refuse_shared_accelerator(target.fleet, others)
    share = _memory_share(target, [facts[node.name] for node in target.nodes], occupied=running.holds_memory)
    number = max(running.highest_number, last_number) + 1
    generation = _generation(target, facts, number, share[0], run_id)
    reasons = [target.choice.reason, *share[1], *_left_out(target, facts)]
    if running.complete(target):
        reasons.insert(0, "what runs was asked for, but never joined, or was started from another checkout: it goes")
    elif running.containers:
        reasons.insert(0, f"{len(running.containers)} container(s) of an earlier generation make room first")
    return ClusterPlan(target, None, running.containers, generation, tuple(reasons))


def generation_of(container: Container) -> int:
    text = container.labels.get(LABEL + "generation", "0")
    return int(text) if text.isdecimal() else 0


def refuse_shared_accelerator(fleet: Fleet, others: Sequence[Container]) -> None:
    """Raises ClusterError where another deployment runs on the nodes: a GB10 serves one."""
    if fleet.accelerator is Accelerator.NONE or not others:
        return
    other = others[0]
    name = other.labels.get(LABEL + "deployment", "?")
    raise ClusterError(
        "the node's accelerator is taken by another deployment",
        node=other.node,
        observed=f"container {other.name} of deployment {name}",
        remedy=f"`spark-pipeline stop {name}` first, or declare one of the two on other nodes",
    )


def _refuse_missing_accelerator(target: Target, facts: Mapping[str, NodeFacts]) -> None:
    for node in target.nodes:
        if target.fleet.accelerator is Accelerator.NVIDIA and facts[node.name].gpu is None:
            raise ClusterError(
                "the node shows no NVIDIA accelerator",
                node=node.name,
                observed=f"nvidia-smi gives nothing; the fleet is declared `accelerator: {target.fleet.accelerator}`",
                remedy="`nvidia-smi` on that node: after a kernel update without its driver module it needs a repair",
            )


def _left_out(target: Target, facts: Mapping[str, NodeFacts]) -> list[str]:
    """Why an HCA is not given to NCCL; nothing to say where nothing uses NCCL."""
    if target.fleet.accelerator is Accelerator.NONE or len(target.nodes) == 1:
        return []
    return [reason for node in target.nodes for reason in usable_hcas(facts[node.name], str(node.fabric))[1]]


def _memory_share(
    target: Target, facts: Sequence[NodeFacts], *, occupied: bool
) -> tuple[float | None, tuple[str, ...]]:
    declared = target.deployment.serve.gpu_memory_utilization
    if target.fleet.accelerator is Accelerator.NONE:
        return (None, ()) if declared == "auto" else (declared, (f"gpu_memory_utilization {declared:.2f}: declared",))
    if declared == "auto":
        share = utilization(facts, occupied=occupied)
    else:
        share = MemoryShare(declared, f"gpu_memory_utilization {declared:.2f}: declared")
    demand = Demand(
        target.fleet.accelerator,
        target.weights.size_bytes,
        declared_share=None if declared == "auto" else declared,
        occupied=occupied,
    )
    refuse_what_does_not_fit(facts, demand)
    return share.utilization, (share.reason,)


def _generation(
    target: Target, facts: Mapping[str, NodeFacts], number: int, share: float | None, run_id: str
) -> Generation:
    deployment, backend = target.deployment, target.choice.backend
    return Generation(
        deployment=deployment.name,
        number=number,
        spec_hash=target.spec_hash,
        fleet=target.fleet.name,
        repo=target.weights.repo,
        commit=target.weights.commit,
        model_directory=target.weights.directory,
        image_reference=target.image.reference,
        image_declared=target.image.declared,
        image_fingerprint=target.image.fingerprint,
        image_digest=target.image.digest,
        engine=target.image.engine.versions(),
        backend=backend,
        tensor=deployment.parallel.tensor,
        pipeline=deployment.parallel.pipeline,
        head_address=str(target.nodes[0].fabric),
        port=deployment.serve.port,
        rendezvous_port=deployment.serve.rendezvous_port,
        served_name=deployment.serve.served_name,
        max_model_len=deployment.serve.max_model_len,
        serve_args=deployment.serve.args,
        serve_environment=dict(deployment.serve.env),
        start_timeout_seconds=deployment.serve.start_timeout_seconds,
        ranks=tuple(
            _rank(target, facts[node.name], rank, number, share, run_id) for rank, node in enumerate(target.nodes)
        ),
        run_id=run_id,
    )


def _rank(target: Target, facts: NodeFacts, rank: int, number: int, share: float | None, run_id: str) -> Rank:
    deployment, fleet, backend = target.deployment, target.fleet, target.choice.backend
    node, head = target.nodes[rank], target.nodes[0]
    address, head_address = str(node.fabric), str(head.fabric)
    several = len(target.nodes) > 1
    uses_ray = backend is Backend.RAY
    mode = "mp" if not uses_ray else "ray-head" if rank == 0 else "ray-worker"
    port = deployment.serve.rendezvous_port
    ray = commands.ray_start(fleet.accelerator, head=rank == 0, address=address, head_address=head_address, port=port)
    environment = (
        commands.common_environment(fleet.accelerator)
        | rank_environment(facts, address, accelerated=several and fleet.accelerator is Accelerator.NVIDIA)
        | (commands.ray_environment() if uses_ray else {})
        | deployment.serve.env
    )
    name = container_name(deployment.name, number, rank)
    return Rank(
        rank=rank,
        node=node.name,
        fabric=address,
        container=name,
        run=commands.docker_run(
            name=name,
            labels=labels(
                deployment=deployment.name,
                number=number,
                rank=rank,
                spec_hash=target.spec_hash,
                image_fingerprint=target.image.fingerprint,
                revision=target.weights.commit,
                run_id=run_id,
            ),
            environment=environment,
            image=target.image.reference,
            fingerprint=target.image.fingerprint,
            model_directory=target.weights.directory,
            accelerator=fleet.accelerator,
            facts=facts,
            arguments=(mode, head_address, str(port), *(ray if uses_ray else ())),
        ),
        serve=commands.vllm_serve(
            deployment,
            model_directory=target.weights.directory,
            backend=backend,
            rank=rank,
            head_address=head_address,
            utilization=share,
        )
        if rank == 0 or not uses_ray
        else None,
    )
