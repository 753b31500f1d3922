"""What every stage is handed: one deployment, its machines, and a place to say how it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import Progress
from spark_pipeline.spec.deployment import Deployment
from spark_pipeline.spec.fleet import Fleet, Node
from spark_pipeline.spec.project import Project


@dataclass(frozen=True)
class Session:
    """One piece of work on one deployment.

    `guard` is called right before the fleet is changed: it raises LeaseHeldError if the lease is no longer ours.
    """

    project: Project
    deployment: Deployment
    connection: FleetConnection
    progress: Progress
    run_id: str
    guard: Callable[[], None] = lambda: None

    @property
    def fleet(self) -> Fleet:
        return self.project.fleets[self.deployment.fleet]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In rank order; the first is the head."""
        return self.project.nodes_of(self.deployment)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The nodes' machines, in rank order."""
        return tuple(self.connection.host(node.name) for node in self.nodes)

    @property
    def head(self) -> Host:
        return self.connection.host(self.fleet.head.name)

    @property
    def state_dir(self) -> Path:
        return self.project.state_dir(self.deployment.name)


@contextmanager
def open_session(project: Project, deployment: str, *, progress: Progress, run_id: str) -> Iterator[Session]:
    """Connect lazily; every connection is closed at the end, however it ends.

    Args:
        run_id: who works: Dagster's run id, or `cli-<user>-<pid>`. Stands in containers' labels and in the lease.
    """
    declared = project.deployment(deployment)
    with FleetConnection(project.fleet(declared.fleet), project.known_hosts) as connection:
        yield Session(project, declared, connection, progress, run_id)
