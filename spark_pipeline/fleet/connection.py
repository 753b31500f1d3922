"""All machines of a fleet, each connected when it is first asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import paramiko

from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.fleet.login import exchange_keys, login
from spark_pipeline.fleet.parallel import each
from spark_pipeline.fleet.route import Route
from spark_pipeline.fleet.ssh import SshHost
from spark_pipeline.spec.fleet import Fleet

T = TypeVar("T")


class FleetConnection:
    """The way to every node of a fleet; a context manager that closes what it opened. Thread-safe.

    Args:
        fleet: the machines.
        known_hosts: the pipeline's own pinned host keys.
    """

    def __init__(self, fleet: Fleet, known_hosts: Path) -> None:
        self.fleet = fleet
        self.known_hosts = known_hosts
        self._hosts: dict[str, SshHost | LocalHost] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def host(self, name: str) -> Host:
        """The node of this name. Costs nothing: its first command connects.

        Raises:
            KeyError: the fleet has no such node.
        """
        return self._host(name)

    def each(self, names: Iterable[str], work: Callable[[Host], T]) -> dict[str, T]:
        """`work(host)` for every named node, at once. The first error is raised after all have ended."""
        return each(names, lambda name: work(self.host(name)))

    def server_key(self, name: str) -> paramiko.PKey:
        """The host key that a node shows, without logging in there (but at its jump host).

        Raises:
            UnreachableError: and, for the jump host, whatever a login there raises.
        """
        route = Route.to(self.fleet, self.fleet.node(name))
        transport = exchange_keys(route, self._jump(route))
        try:
            return transport.get_remote_server_key()
        finally:
            transport.close()

    def close(self) -> None:
        """Close every connection, the ones behind a jump host first."""
        with self._lock:
            hosts, self._hosts = list(self._hosts.values()), {}
        for host in reversed(hosts):
            if isinstance(host, SshHost):
                host.close()

    def _host(self, name: str) -> SshHost | LocalHost:
        with self._lock:
            if name not in self._hosts:
                node = self.fleet.node(name)
                self._hosts[name] = LocalHost(name) if node.local else SshHost(name, lambda: self._login(name))
            return self._hosts[name]

    def _login(self, name: str) -> paramiko.Transport:
        route = Route.to(self.fleet, self.fleet.node(name))
        return login(route, self.known_hosts, self._jump(route))

    def _jump(self, route: Route) -> paramiko.Transport | None:
        """The jump host's connection; None when the node is reached from here."""
        if route.via is None:
            return None
        via = self._host(route.via.name)
        return via.transport() if isinstance(via, SshHost) else None
