"""`spark-pipeline fleet enroll`: pin the host key of every node, once, by an explicit act."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from spark_pipeline.errors import HostKeyError
from spark_pipeline.fleet import pins
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.login import check_host_key
from spark_pipeline.fleet.progress import Progress
from spark_pipeline.fleet.route import Route
from spark_pipeline.spec.fleet import Fleet


class PinState(StrEnum):
    """What enrolling did with a key."""

    NEW = "new"
    KNOWN = "known"
    REPLACED = "replaced"


@dataclass(frozen=True)
class PinnedKey:
    """The host key of one node.

    Args:
        alias: the name it is pinned to: '<fleet>/<node>'.
        key_type: 'ssh-ed25519' where the node has one.
        fingerprint: 'SHA256:...', as `ssh-keygen -lf` prints it on the node.
    """

    node: str
    alias: str
    key_type: str
    fingerprint: str
    state: PinState

    @property
    def changed(self) -> bool:
        """Whether the file was changed for it."""
        return self.state is not PinState.KNOWN


def enroll(fleet: Fleet, known_hosts: Path, progress: Progress, replace: bool = False) -> tuple[PinnedKey, ...]:
    """Fetch each node's host key and pin it. Asking again changes nothing; local nodes have none.

    A node behind a jump host is asked through it, so that the jump host must let us log in by then.

    Args:
        replace: pin a changed key in the place of the old one.

    Raises:
        HostKeyError: a node shows another key than the pinned one, and `replace` is not given.
        UnreachableError, LoginRefusedError
    """
    found: list[PinnedKey] = []
    with FleetConnection(fleet, known_hosts) as connection:
        for node in fleet.nodes:
            if node.ssh is None:
                continue
            found.append(_enroll_node(connection, Route.to(fleet, node), replace))
            progress(f"{node.name}: {found[-1].state} {found[-1].key_type} {found[-1].fingerprint}")
    return tuple(found)


def _enroll_node(connection: FleetConnection, route: Route, replace: bool) -> PinnedKey:
    seen = connection.server_key(route.node)
    known = pins.pinned(connection.known_hosts, route.fleet, route.node)
    state = PinState.NEW if known is None else PinState.KNOWN
    if known is not None:
        try:
            check_host_key(route, known, seen)
        except HostKeyError:
            if not replace:
                raise
            state = PinState.REPLACED
    if state is not PinState.KNOWN:
        pins.pin(connection.known_hosts, route.fleet, route.node, seen)
    alias = pins.alias(route.fleet, route.node)
    return PinnedKey(route.node, alias, seen.get_name(), seen.fingerprint, state)
