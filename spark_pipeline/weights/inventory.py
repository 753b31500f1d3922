"""Which revisions of which models lie on the nodes, who needs them, and removing those that nobody does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_pipeline.errors import StateError
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import Progress, human_bytes
from spark_pipeline.spec import store
from spark_pipeline.spec.fleet import Fleet
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.manifest import read_manifest
from spark_pipeline.weights.node.messages import Inventory
from spark_pipeline.weights.node_program import ask_inventory, remove_revision
from spark_pipeline.weights.record import WeightsRecord

_REVISION_LABEL = "spark_pipeline.revision"
_DEPLOYMENT_LABEL = "spark_pipeline.deployment"


class _Served(BaseModel):
    """What of a record of the serving stage matters here; it has more."""

    model_config = ConfigDict(extra="ignore")

    repo: str
    commit: str


class _Generation(BaseModel):
    model_config = ConfigDict(extra="ignore")

    generation: _Served


@dataclass(frozen=True)
class Revision:
    """One revision on one node.

    Args:
        shared_bytes: of `size_bytes`, what another revision there holds too.
        complete: its marker is there.
        set_aside_bytes: of `size_bytes`, what was found wrong and is kept to be looked at.
        needed_by: why it stays: "tiny: deployed", "container sp-tiny-g3-r0"; empty: nobody needs it.
    """

    node: str
    repo: str
    commit: str
    files: int
    size_bytes: int
    shared_bytes: int
    complete: bool
    needed_by: tuple[str, ...]
    set_aside_bytes: int = 0

    @property
    def frees_bytes(self) -> int:
        """What removing it gives, at least: more, when the revision goes too that it shares bytes with."""
        return self.size_bytes - self.shared_bytes


def list_revisions(
    project: Project, fleet: Fleet, connection: FleetConnection, nodes: Sequence[str] | None = None
) -> tuple[Revision, ...]:
    """Everything that lies below weights_dir on these nodes of the fleet; default: on all. Changes nothing."""
    recorded = _recorded_needs(project)

    def look(host: Host) -> tuple[Revision, ...]:
        return tuple(_with_needs(host, ask_inventory(host, fleet.weights_dir), recorded))

    found = connection.each([node.name for node in fleet.nodes] if nodes is None else nodes, look)
    return tuple(revision for revisions in found.values() for revision in revisions)


def prune(
    fleet: Fleet,
    connection: FleetConnection,
    unneeded: Sequence[Revision],
    progress: Progress,
    guard: Callable[[], None] = lambda: None,
) -> tuple[Revision, ...]:
    """Remove revisions, all nodes at once. The caller holds the fleet's lease and has just listed them.

    Args:
        guard: called before each removal; see Session.

    Raises:
        ValueError: one of them is needed.
        WeightsError: one is not ours, or a run works on it.
    """
    if kept := [revision for revision in unneeded if revision.needed_by]:
        raise ValueError(f"{kept[0].repo} at {kept[0].commit} is needed: {kept[0].needed_by}")
    by_node: dict[str, list[Revision]] = {}
    for revision in unneeded:
        by_node.setdefault(revision.node, []).append(revision)

    def work(host: Host) -> None:
        for revision in by_node[host.name]:
            guard()
            remove_revision(host, fleet.weights_dir, revision.repo, revision.commit)
            progress(
                f"[{host.name}] removed {revision.repo} at {revision.commit[:12]}: {human_bytes(revision.frees_bytes)}"
            )

    connection.each(by_node, work)
    return tuple(unneeded)


def _with_needs(
    host: Host, found: Inventory, recorded: Mapping[tuple[str, str], tuple[str, ...]]
) -> Sequence[Revision]:
    mounted = _mounted(host)
    return [
        Revision(
            node=host.name,
            repo=one.repo,
            commit=one.commit,
            files=one.files,
            size_bytes=one.size_bytes,
            shared_bytes=one.shared_bytes,
            complete=one.complete,
            set_aside_bytes=one.set_aside_bytes,
            needed_by=(
                *recorded.get((one.repo, one.commit), ()),
                *((mounted[one.commit],) if one.commit in mounted else ()),
            ),
        )
        for one in found.revisions
    ]


def _mounted(host: Host) -> dict[str, str]:
    """Commits that a container was made for, whoever made it, running or not: it could be started again."""
    found = Docker(host).containers({_DEPLOYMENT_LABEL: ""})
    return {container.labels.get(_REVISION_LABEL, ""): f"container {container.name}" for container in found}


def _recorded_needs(project: Project) -> dict[tuple[str, str], tuple[str, ...]]:
    """What the deployments have, serve, served well last, or are about to have, by (repository, commit). Those of
    every fleet: two fleets may be declared over the same machines."""
    needs: dict[tuple[str, str], tuple[str, ...]] = {}

    def need(repo: str, commit: str, why: str) -> None:
        needs[repo, commit] = (*needs.get((repo, commit), ()), why)

    for deployment in project.deployments.values():
        state = project.state_dir(deployment.name)
        if record := store.read(state / "weights.json", WeightsRecord):
            need(record.repo, record.commit, f"{deployment.name}: brought here last")
        for name, what in (("serving.json", "serves"), ("last_good.json", "was good last")):
            try:
                served = _Generation.model_validate_json((state / name).read_text(encoding="utf-8")).generation
            except FileNotFoundError:
                continue
            except ValidationError as error:
                raise StateError(
                    f"what {deployment.name} needs cannot be read, so nothing can be called unneeded",
                    observed=f"{state / name}: {error.errors()[0]['msg']}",
                    remedy=f"move {state / name} away if that deployment is not to be kept",
                ) from error
            need(served.repo, served.commit, f"{deployment.name}: {what}")
        # What a run was bringing when it ended: the record above is written at the end, the manifest at the start.
        manifest = read_manifest(state)
        if manifest and (manifest.repo, manifest.commit) not in needs:
            need(manifest.repo, manifest.commit, f"{deployment.name}: resolved last")
    return needs
