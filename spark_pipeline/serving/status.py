"""What runs now, read from the nodes: the containers' labels, and whether the endpoint answers."""

from __future__ import annotations

from dataclasses import dataclass

from spark_pipeline.cluster import containers
from spark_pipeline.cluster.generation import LABEL
from spark_pipeline.fleet.session import Session
from spark_pipeline.serving import api
from spark_pipeline.serving.record import find_record


@dataclass(frozen=True)
class RankStatus:
    """One container as its node shows it."""

    node: str
    container: str
    state: str
    generation: str
    rank: str
    image_fingerprint: str
    revision: str
    started_at: str


@dataclass(frozen=True)
class DeploymentStatus:
    """`answers`: the model ids that /v1/models lists right now, None if nothing answers."""

    deployment: str
    url: str | None
    answers: tuple[str, ...] | None
    ranks: tuple[RankStatus, ...]

    @property
    def serves(self) -> bool:
        return self.answers is not None and bool(self.ranks) and all(item.state == "running" for item in self.ranks)


def status(session: Session) -> DeploymentStatus:
    """One look at every node of the fleet, all at once."""
    running, _ = containers.observe(session)
    record = find_record(session.project, session.deployment.name)
    ranks = tuple(
        RankStatus(
            node=item.node,
            container=item.name,
            state=item.state,
            generation=item.labels.get(LABEL + "generation", ""),
            rank=item.labels.get(LABEL + "rank", ""),
            image_fingerprint=item.labels.get(LABEL + "image_fingerprint", ""),
            revision=item.labels.get(LABEL + "revision", ""),
            started_at=item.started_at,
        )
        for item in running.containers
    )
    return DeploymentStatus(
        deployment=session.deployment.name,
        url=record.url if record else None,
        answers=api.model_ids(session.head, session.deployment.serve.port) if ranks else None,
        ranks=tuple(sorted(ranks, key=lambda item: (item.generation, item.rank))),
    )
