"""One node: namespaces over an overlay of the common root, with its own sshd and Docker Engine."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab import cgroups, keys, network
from spark_pipeline.lab.commands import run
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import LabPlan, NodePlan
from spark_pipeline.lab.probes import engine_version, ssh_greets
from spark_pipeline.lab.processes import ProcessId, identify, read_pid_file, start_detached, tail
from spark_pipeline.lab.status import NodeStatus

READY_LIMIT_S = 60
_HERE = Path(__file__).parent
# Nothing of the caller's environment on a node: a proxy would change what dockerd does, a token has no business there.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CLEAN_ENVIRONMENT = ("env", "-i", "HOME=/root", "LANG=C.UTF-8", f"PATH={_PATH}")


@dataclass(frozen=True)
class Node:
    """A node of one lab: start it, ask it, stop it."""

    plan: NodePlan
    lab: LabPlan
    paths: LabPaths

    @property
    def disk(self) -> Path:
        """Its folder: `docker` stays from one `up` to the next, the rest goes with `down`."""
        return self.paths.disk(self.plan.name)

    @property
    def pid_file(self) -> Path:
        """Names the `unshare` that holds the node: with it, everything on the node ends."""
        return self.paths.run / f"{self.plan.name}.pid"

    @property
    def log(self) -> Path:
        """What its first process, sshd and dockerd print."""
        return self.paths.run / f"{self.plan.name}.log"

    @property
    def init(self) -> ProcessId | None:
        """The node's first process, None while it does not run."""
        keeper = read_pid_file(self.pid_file)
        return keeper.child() if keeper else None

    @property
    def exists(self) -> bool:
        """Whether it was started and not taken down, even when it has ended since."""
        return self.pid_file.exists() or self.plan.namespace in network.namespaces()

    def start(self, root: Path, names: Sequence[NodePlan]) -> None:
        """Attach its links and start its first process; `wait_until_ready` says when it can be used.

        Its disk is kept when there is one, as that of a machine switched on again.
        """
        network.attach(self.lab, self.plan)
        self._prepare_disk(root, names)
        self.log.unlink(missing_ok=True)
        script, services = _HERE / "node_init.sh", _HERE / "node_services.sh"
        # Not `ip netns exec`: it mounts /sys anew and hides the cgroups ("Devices cgroup isn't mounted").
        enter = ["nsenter", f"--net={network.NAMESPACES / self.plan.namespace}"]
        unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        words = [self.plan.name, str(root), str(services), self.plan.cgroup, str(self.lab.management)]
        init = [*_CLEAN_ENVIRONMENT, "/bin/sh", str(script), *words]
        start_detached([*enter, *unshare, *init], pid_file=self.pid_file, log=self.log, cwd=self.disk)

    def _prepare_disk(self, root: Path, names: Sequence[NodePlan]) -> None:
        made_from = self.disk / "root"
        if not made_from.exists() or made_from.read_text() != str(root):
            self.wipe()  # the upper half of an overlay means nothing over another lower half
        for part in ("upper", "work", "merged", "docker"):
            (self.disk / part).mkdir(parents=True, exist_ok=True)
        (self.disk / "upper").chmod(0o755)  # it becomes the node's /, which user spark must pass under any umask
        made_from.write_text(str(root))
        seed = self.disk / "seed"
        shutil.rmtree(seed, ignore_errors=True)
        seed.mkdir(mode=0o700)
        host_key = keys.host_key(self.paths, self.plan)
        accepted = keys.public(self.paths.key)
        if self.plan.management is None:
            accepted += keys.public(keys.head_key(self.paths))
        else:
            shutil.copy(keys.head_key(self.paths), seed / "own_key")
            (seed / "own_key.pub").write_text(keys.public(keys.head_key(self.paths)))
        shutil.copy(host_key, seed / "host_key")
        (seed / "host_key.pub").write_text(keys.public(host_key))
        (seed / "authorized_keys").write_text(accepted)
        (seed / "hostname").write_text(f"{self.plan.name}\n")
        (seed / "hosts").write_text(hosts_file(self.plan, names))

    @property
    def disk_is_fresh(self) -> bool:
        """Whether its next start will be the first on this disk."""
        return not (self.disk / "upper").exists()

    def wipe(self) -> None:
        """Forget everything on its disk but the engine's images. The node must not run."""
        for part in ("upper", "work", "merged", "seed"):
            shutil.rmtree(self.disk / part, ignore_errors=True)
        (self.disk / "root").unlink(missing_ok=True)

    def wait_until_ready(self) -> None:
        """Wait for sshd and the engine.

        Raises:
            LabError: they did not come in time, or the node ended; with the end of its log.
        """
        deadline = time.monotonic() + READY_LIMIT_S
        while True:
            status = self.status()
            if status.ok:
                return
            # Not `status.pid`: right after its start the node has a keeper and not yet a first process.
            ended = read_pid_file(self.pid_file) is None
            if ended or time.monotonic() > deadline:
                lacking = "it ended" if ended else f"ssh {status.ssh_ok}, docker {status.docker_ok}"
                raise LabError(
                    f"the node is not ready ({lacking})",
                    node=self.plan.name,
                    observed=tail(self.log),
                    remedy="spark-pipeline lab down, then spark-pipeline lab up",
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """End everything on the node, as a power cut does, and remove its links and cgroups. The disk stays."""
        keeper = read_pid_file(self.pid_file)
        found = [process for process in (keeper.child() if keeper else None, keeper) if process]
        # Without a pid file (lost, or a crash between start and note) its namespace still tells its processes;
        # asked again, because one of them may have forked meanwhile.
        for _ in range(5):
            found += self._processes()
            if not found:
                break
            stayed = [process.pid for process in found if not process.end()]
            if stayed:
                raise LabError("processes of the node do not end", node=self.plan.name, observed=f"pids {stayed}")
            found = []
        self.pid_file.unlink(missing_ok=True)
        network.detach(self.lab, self.plan)
        cgroups.remove(self.plan.cgroup)

    def _processes(self) -> list[ProcessId]:
        """Everything that runs in its network namespace."""
        if self.plan.namespace not in network.namespaces():
            return []
        return [process for process in map(identify, network.processes_in(self.plan.namespace)) if process]

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,
        timeout: float,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the node as root, past sshd: for tests and for faults.

        Raises:
            LabError: the node does not run, or the command did not end in time.
        """
        init = self.init
        if init is None:
            raise LabError("the node does not run", node=self.plan.name, remedy="spark-pipeline lab up")
        enter = ["nsenter", f"--target={init.pid}", "--mount", "--uts", "--ipc", "--net", "--pid"]
        return run([*enter, *_CLEAN_ENVIRONMENT, *argv], input=input, timeout_s=timeout, check=check)

    def status(self) -> NodeStatus:
        """Ask the node's first process, sshd and engine; a few milliseconds."""
        init = self.init
        version = engine_version(init) if init else None
        return NodeStatus(
            name=self.plan.name,
            management=str(self.plan.management) if self.plan.management else None,
            fabric=str(self.plan.fabric),
            fabric_twin=str(self.plan.fabric_twin),
            pid=init.pid if init else None,
            ssh_ok=bool(init) and self._ssh_answers(),
            docker_ok=version is not None,
            docker_version=version,
        )

    def write_hosts(self, text: str) -> None:
        """Give a running node another /etc/hosts."""
        self.run(["tee", "/etc/hosts"], input=text, timeout=10, check=True)

    def forget_containers(self) -> None:
        """Remove containers that an earlier life of this lab left in the engine's store; images stay."""
        ids = self.run(["docker", "ps", "--all", "--quiet"], timeout=30, check=True).stdout.split()
        if ids:
            self.run(["docker", "rm", "--force", *ids], timeout=120, check=True)

    def _ssh_answers(self) -> bool:
        """Whether sshd sends its greeting: the head's over the management bridge, a peer's on the peer itself."""
        if self.plan.management:
            return ssh_greets(str(self.plan.management))
        ask = 'exec 3<>"/dev/tcp/$0/22" && read -r -t 2 line <&3 && case "$line" in SSH-2.0-*) exit 0;; esac; exit 1'
        try:
            return self.run(["bash", "-c", ask, str(self.plan.fabric)], timeout=5).returncode == 0
        except LabError:
            return False


def hosts_file(own: NodePlan, names: Sequence[NodePlan]) -> str:
    """/etc/hosts of a node: its own name is a loopback address, as on Debian, Ubuntu and so DGX OS."""
    lines = ["127.0.0.1 localhost", f"127.0.1.1 {own.name}", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{other.fabric} {other.name}" for other in names if other.name != own.name]
    return "\n".join(lines) + "\n"


def every_node(lab: LabPlan, paths: LabPaths) -> tuple[Node, ...]:
    """Every node a lab could have."""
    return tuple(Node(plan, lab, paths) for plan in lab.every())
