"""Root file systems made by debootstrap, kept by the hash of their recipe."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab.commands import environment, run
from spark_pipeline.lab.locks import only_one
from spark_pipeline.lab.mirror import apt_proxy, find_mirror
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.progress import Say, heartbeat

# Fixed, whatever the host runs: every Debian mirror carries it, and the nodes are the same everywhere.
SUITE = "bookworm"
DEBOOTSTRAP_LIMIT_S = 1800

NODE_PACKAGES = (
    "ca-certificates",
    "curl",
    "docker.io",
    "iproute2",
    "iptables",
    "iputils-ping",
    "openssh-server",
    "pigz",  # docker unpacks layers with it when it is there
    "procps",
    "python3",  # the pipeline runs standard-library Python on nodes
    "rsync",
    "sudo",
)

# UsePAM no: without it a session needs a working PAM stack. The account must then not be locked (see below).
_SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
AllowUsers spark
MaxSessions 64
MaxStartups 64
AcceptEnv LANG LC_*
Subsystem sftp /usr/lib/openssh/sftp-server
"""

# usermod -p '*': a locked password ("!") refuses keys too when PAM is off: "Permission denied (publickey)".
_NODE_SETUP = """\
set -eu
useradd --create-home --shell /bin/bash --uid 1000 --groups docker spark
usermod -p '*' spark
rm -f /etc/ssh/ssh_host_*
"""


@dataclass(frozen=True)
class Recipe:
    """What a root is made of. Equal recipes share one root."""

    name: str
    packages: tuple[str, ...]
    setup: str = ""  # shell, run inside the new root
    files: tuple[tuple[str, str], ...] = ()  # path in the root, text

    @property
    def digest(self) -> str:
        """Content hash, short enough to read."""
        text = repr((SUITE, self.name, sorted(self.packages), self.setup, self.files))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


NODE = Recipe("node", NODE_PACKAGES, _NODE_SETUP, (("etc/ssh/sshd_config", _SSHD_CONFIG),))


def ensure_root(name: str, packages: tuple[str, ...], progress: Say, paths: LabPaths | None = None) -> Path:
    """A Debian root with these packages and nothing else changed: made once, then found again.

    Raises:
        LabError: debootstrap failed; nothing half-made stays behind.
    """
    return ensure(Recipe(name, packages), progress, paths or LabPaths.default())


def ensure_node_root(progress: Say, paths: LabPaths) -> Path:
    """The root that all nodes have in common."""
    return ensure(NODE, progress, paths)


def ensure(recipe: Recipe, say: Say, paths: LabPaths) -> Path:
    """The root of a recipe."""
    root = paths.roots / recipe.digest
    if root.is_dir():
        return root
    with only_one(paths.roots / f"{recipe.digest}.lock", say, what=f"the root file system of {recipe.name}"):
        if root.is_dir():
            return root
        unfinished = paths.roots / f"{recipe.digest}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)  # of a killed run; its processes died with it
        try:
            _make(recipe, unfinished, say)
            unfinished.rename(root)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return root


def _make(recipe: Recipe, target: Path, say: Say) -> None:
    mirror = find_mirror()
    say(f"root file system of {recipe.name}: debootstrap of {len(recipe.packages)} packages from {mirror}")
    target.mkdir(parents=True)
    target.chmod(0o755)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(sorted(recipe.packages))}"]
    _contained([*command, SUITE, str(target), mirror], say, f"root file system of {recipe.name}")
    # debootstrap copies these two from the machine it runs on.
    (target / "etc/resolv.conf").write_text("")
    (target / "etc/hostname").write_text(f"{recipe.name}\n")
    for path, text in recipe.files:
        (target / path).write_text(text)
    if recipe.setup:
        run(["chroot", str(target), "/bin/sh", "-c", recipe.setup], timeout_s=60)
    for cache in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(target / cache, ignore_errors=True)
        (target / cache / "partial").mkdir(parents=True)


def _contained(argv: list[str], say: Say, step: str) -> None:
    """Run debootstrap so that it cannot outlive us and its mounts vanish with it.

    It mounts /proc into the new root; killed half-way in the machine's own mount namespace, it leaves that mount,
    and a later `rm -rf` of the root would walk into it.
    """
    cage = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    settings = {"DEBIAN_FRONTEND": "noninteractive"}
    if (proxy := apt_proxy()) and "http_proxy" not in os.environ:
        settings["http_proxy"] = proxy
    last: deque[str] = deque(maxlen=15)
    with heartbeat(say, step) as beat:
        process = subprocess.Popen(
            [*cage, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment(settings),
        )
        assert process.stdout is not None
        limit = threading.Timer(DEBOOTSTRAP_LIMIT_S, process.kill)
        limit.start()
        try:
            for line in process.stdout:
                last.append(line.rstrip())
                beat.doing = line.strip().removeprefix("I: ")
        finally:
            limit.cancel()
            process.kill()  # nothing, unless we were interrupted
            process.stdout.read()  # its end means that every process that could write into the root is gone
            status = process.wait(timeout=30)
    if status != 0:
        raise LabError(
            f"{step}: debootstrap failed with status {status}",
            observed="\n".join(last),
            remedy="see whether the mirror answers: apt-get update",
        )
