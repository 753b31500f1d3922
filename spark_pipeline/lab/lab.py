"""The virtual fleet as one thing: up, down, status.

Nothing about what runs is remembered but pid files: names and addresses follow from the plan, so cleaning up
finds everything of ours after any crash, and nothing that is not ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

from spark_pipeline.errors import LabError
from spark_pipeline.lab import cgroups, network, service
from spark_pipeline.lab.keys import ensure_keys
from spark_pipeline.lab.locks import only_one
from spark_pipeline.lab.node import Node, every_node, hosts_file
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import MAX_NODES, LabPlan, NodePlan
from spark_pipeline.lab.processes import read_pid_file
from spark_pipeline.lab.progress import Say, heartbeat
from spark_pipeline.lab.requirements import demand, lacks, observe
from spark_pipeline.lab.rootfs import ensure_node_root
from spark_pipeline.lab.status import LabStatus

USER = "spark"


def _silent(_: str) -> None:
    """Progress for callers who want none."""


@dataclass(frozen=True)
class Lab:
    """A virtual fleet on this machine. Objects are cheap and hold no state: two equal ones are the same lab."""

    plan: LabPlan = field(default_factory=LabPlan)
    paths: LabPaths = field(default_factory=LabPaths.default)

    def up(self, nodes: int = 2, progress: Say = _silent) -> LabStatus:
        """Bring up at least the first `nodes` nodes, the hub and the registry; whatever is whole is left alone.

        A node that ended or lost a service is started again with its disk, as a machine after a power cut.
        Up already: under a second, nothing is started.

        Raises:
            LabError: this machine lacks something (all of it is named), or a part did not become ready.
        """
        if not 1 <= nodes <= MAX_NODES:
            raise LabError(f"a lab has 1 to {MAX_NODES} nodes, not {nodes}")
        status = self.status()
        if self._whole(status, nodes):
            return status
        demand(lacks(observe(self.plan, self.paths)))
        self._refuse_if_not_ours()
        with self._lock(progress):
            if not self._whole(self.status(), nodes):
                self._mend(nodes, progress)
        return self.status()

    def down(self, purge: bool = False, progress: Say = _silent) -> None:
        """End the lab and prove that nothing of it is left; `purge` removes the cache too.

        Raises:
            LabError: something stayed; it is named.
        """
        self._refuse_if_not_ours()
        if purge:
            self._refuse_to_purge_under_others()
        with self._lock(progress):
            for server in service.services(self.plan, self.paths):
                server.stop()
            for node in self._nodes():
                node.stop()
                node.wipe()
            network.remove_bridges(self.plan)
            network.release_namespace_folder(self.paths.cache)
            if stayed := self.leftovers():
                raise LabError("the lab is down, but not everything of it is gone", observed="\n".join(stayed))
            if purge:
                progress(f"removing {self.paths.own}")
                shutil.rmtree(self.paths.own)
                with suppress(OSError):
                    self.paths.own.parent.rmdir()  # if we were all it held

    def status(self) -> LabStatus:
        """What is up now; changes nothing."""
        hub, registry = service.services(self.plan, self.paths)
        nodes = () if self._other_owner else tuple(node for node in self._nodes() if node.exists)
        return LabStatus(
            nodes=tuple(node.status() for node in nodes),
            hub_url=self.plan.hub_url,
            hub_ok=hub.answers,
            registry=self.plan.registry_address,
            registry_ok=registry.answers,
            key=self.paths.key,
            user=USER,
        )

    def run_in_node(
        self,
        name: str,
        argv: Sequence[str],
        *,
        input: str | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node as root, past sshd; its status is in the answer, whatever it is.

        Raises:
            LabError: the node does not run, or the command did not end within `timeout` seconds.
        """
        return self.node(name).run(argv, input=input, timeout=timeout)

    def restart_node(self, name: str) -> None:
        """Switch a node off and on again; it keeps its disk and its address, its containers have ended."""
        with self._lock(_silent):
            node = self.node(name)
            node.stop()
            node.start(ensure_node_root(_silent, self.paths), self._present(1))
            node.wait_until_ready()

    def kill_node(self, name: str) -> None:
        """Cut a node's power: its first process is killed, links and notes stay as a crash leaves them."""
        if init := self.node(name).init:
            init.end()

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises:
            LabError: a lab has no such node.
        """
        found = next((node for node in self._nodes() if node.plan.name == name), None)
        if found is None:
            names = ", ".join(node.plan.name for node in self._nodes())
            raise LabError(f"a lab has no node {name!r}", remedy=f"one of: {names}")
        return found

    def leftovers(self) -> tuple[str, ...]:
        """Everything of this lab that this machine still has: processes, links, namespaces, cgroups, mounts."""
        found: list[str] = []
        for pid_file in sorted(self.paths.run.glob("*.pid")):
            if process := read_pid_file(pid_file):
                found.append(f"process {process.pid} of {pid_file.stem}")
        links, namespaces = network.links(), network.namespaces()
        ours = [node.plan for node in self._nodes()]
        found += [f"link {name}" for name in (self.plan.bridge, *(n.management_port for n in ours)) if name in links]
        names = (self.plan.fabric_namespace, *(n.namespace for n in ours))
        found += [f"network namespace {name}" for name in names if name in namespaces]
        found += [f"cgroup {path}" for n in ours for path in cgroups.find(n.cgroup)]
        found += [f"mount {mount}" for mount in network.mount_points() if mount.is_relative_to(self.paths.nodes)]
        return tuple(found)

    def _mend(self, count: int, say: Say) -> None:
        root = ensure_node_root(say, self.paths)
        present = self._present(count)
        ensure_keys(self.paths, present)
        wanted = [node for node in self._nodes() if node.plan in present]
        fabric_lost = self.plan.fabric_namespace not in network.namespaces()
        broken = [node for node in wanted if fabric_lost or not node.status().ok]
        for node in broken:
            node.stop()
        network.hold_namespace_folder(self.paths.cache)
        network.ensure_bridges(self.plan, self.paths.own.resolve())
        fresh = [node for node in broken if node.disk_is_fresh]
        for node in broken:
            say(f"starting {node.plan.name}{'' if node in fresh else ', with the disk it had'}")
            node.start(root, present)
        service.prepare(self.plan, self.paths)
        for server in service.services(self.plan, self.paths):
            say(f"starting the {server.name} on port {server.port}")
            server.start()
        for node in wanted:
            with heartbeat(say, f"waiting for sshd and dockerd of {node.plan.name}"):
                node.wait_until_ready()
            node.write_hosts(hosts_file(node.plan, present))
        for node in fresh:
            node.forget_containers()
        self._prove_head_reaches_services()
        say(f"{len(wanted)} nodes, hub and registry are ready")

    def _prove_head_reaches_services(self) -> None:
        """A firewall of this machine may let us reach the head and not the head reach us."""
        for url in (self.plan.hub_url + "/", f"http://{self.plan.registry_address}/v2/"):
            ask = ["curl", "--silent", "--show-error", "--max-time", "5", "--output", "/dev/null", url]
            answer = self.run_in_node("head", ask, timeout=10)
            if answer.returncode != 0:
                raise LabError(
                    f"the head cannot reach {url}",
                    node="head",
                    observed=answer.stderr,
                    remedy=f"let this machine's firewall accept what comes in from {self.plan.bridge}",
                )

    def _whole(self, status: LabStatus, count: int) -> bool:
        return status.up and {node.name for node in self.plan.first(count)} <= {node.name for node in status.nodes}

    def _nodes(self) -> tuple[Node, ...]:
        return every_node(self.plan, self.paths)

    def _present(self, count: int) -> tuple[NodePlan, ...]:
        """Plans of the first `count` nodes and of those that are there already."""
        first = self.plan.first(count)
        return tuple(node.plan for node in self._nodes() if node.plan in first or node.exists)

    def _lock(self, say: Say) -> AbstractContextManager[None]:
        if os.geteuid() != 0:
            raise LabError("changing the lab needs root", remedy="run it with sudo, or as root")
        return only_one(self.paths.run / "lock", say, what=f"the lab {self.plan.prefix!r}")

    @property
    def _other_owner(self) -> str:
        owner = network.owner(self.plan)
        return "" if owner == str(self.paths.own.resolve()) else owner

    def _refuse_if_not_ours(self) -> None:
        """A lab of the same name may belong to another user or another cache: its disks are not ours to end."""
        if owner := self._other_owner:
            raise LabError(
                f"a lab {self.plan.prefix!r} with another cache is up on this machine",
                observed=f"its folder is {owner}, ours {self.paths.own}",
                remedy="take that one down first, with the XDG_CACHE_HOME or HOME it was started with",
            )

    def _refuse_to_purge_under_others(self) -> None:
        others = [path for path in self.paths.own.glob("beside/*/run/*.pid") if read_pid_file(path)]
        if others:
            names = sorted({path.parent.parent.name for path in others})
            raise LabError("the cache is in use by another lab", observed=", ".join(names), remedy="take it down first")
