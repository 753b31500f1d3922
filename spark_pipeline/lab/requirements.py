"""What this machine must have for a lab, asked before anything is made, all answers in one message."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab import network
from spark_pipeline.lab.commands import run
from spark_pipeline.lab.packages import REGISTRY_PACKAGE, Tool, missing_tools, registry_program
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import LabPlan

# First time: root 0.6 GB, engine image 3.7 GB on each of two nodes and once in the registry, its build.
FREE_DISK_FIRST_GB = 20
# Later most of that is there already.
FREE_DISK_GB = 4
# Two engines of a tiny model, two dockerd, Ray.
FREE_MEMORY_GB = 6

# Everything the lab asks of the kernel, inside namespaces that vanish with it. $1: a folder of the cache.
_PROBE = """\
set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
ip link add probe type bridge
ip link add probe0 type veth peer name probe1
umount "$1"
mkdir -p "$1/lower" "$1/upper" "$1/work" "$1/merged"
mount -t overlay none -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" "$1/merged"
"""


@dataclass(frozen=True)
class Machine:
    """What was found."""

    root: bool
    missing: tuple[Tool, ...]
    registry: bool
    kernel_refusal: str  # empty: namespaces, links and overlays can be made
    cgroups: bool
    route_conflict: str  # empty: none
    free_disk_gb: float
    needed_disk_gb: float
    free_memory_gb: float
    folder: Path


@dataclass(frozen=True)
class Lack:
    """One thing this machine lacks, and what to do about it."""

    what: str
    remedy: str


def observe(plan: LabPlan, paths: LabPaths) -> Machine:
    """Look at this machine."""
    root = os.geteuid() == 0
    missing = missing_tools()
    folder = next(path for path in (paths.own, *paths.own.parents) if path.exists())
    return Machine(
        root=root,
        missing=missing,
        registry=registry_program(paths).exists(),
        kernel_refusal="" if not root or missing else _kernel_refusal(paths),
        cgroups=Path("/sys/fs/cgroup").is_dir() and os.path.ismount("/sys/fs/cgroup"),
        needed_disk_gb=FREE_DISK_GB if any(paths.nodes.glob("*/docker")) else FREE_DISK_FIRST_GB,
        route_conflict=network.route_conflict(plan) if not missing else "",
        free_disk_gb=shutil.disk_usage(folder).free / 1e9,
        free_memory_gb=_available_memory_bytes() / 1e9,
        folder=folder,
    )


def lacks(machine: Machine) -> tuple[Lack, ...]:
    """What stands in the way. Pure."""
    found: list[Lack] = []
    if not machine.root:
        found.append(Lack("not root: namespaces, bridges and mounts need it", "run it with sudo, or as root"))
    packages = sorted({tool.package for tool in machine.missing})
    if machine.missing:
        programs = ", ".join(tool.program for tool in machine.missing)
        found.append(Lack(f"programs are missing: {programs}", f"apt-get install {' '.join(packages)}"))
    if not machine.registry:
        found.append(Lack(f"{REGISTRY_PACKAGE} is missing", "unpacked by: spark-pipeline lab up --install"))
    if machine.kernel_refusal:
        remedy = "use a whole machine or virtual machine, or a container with --privileged and a volume for the cache"
        found.append(Lack(f"the kernel refuses what a node is made of: {machine.kernel_refusal}", remedy))
    if not machine.cgroups:
        found.append(Lack("/sys/fs/cgroup is not mounted: containers need it", "mount it, as every init system does"))
    if machine.route_conflict:
        what = f"the management network is in use on this machine: {machine.route_conflict}"
        found.append(Lack(what, "end what made that route (a VPN, another network of virtual machines)"))
    if machine.free_disk_gb < machine.needed_disk_gb:
        what = f"{machine.free_disk_gb:.1f} GB free at {machine.folder}, {machine.needed_disk_gb} GB are needed"
        found.append(Lack(what, "free some, or set XDG_CACHE_HOME to a larger disk"))
    if machine.free_memory_gb < FREE_MEMORY_GB:
        what = f"{machine.free_memory_gb:.1f} GB of memory available, {FREE_MEMORY_GB} GB are needed"
        found.append(Lack(what, "end something large"))
    return tuple(found)


def demand(found: tuple[Lack, ...]) -> None:
    """Raise one error that names everything that is lacking.

    Raises:
        LabError: something is.
    """
    if found:
        raise LabError(
            f"this machine lacks {len(found)} thing{'s' if len(found) > 1 else ''} that the lab needs",
            observed="\n".join(f"- {lack.what}" for lack in found),
            remedy="\n".join(f"- {lack.remedy}" for lack in found),
        )


def _kernel_refusal(paths: LabPaths) -> str:
    """The kernel's words when it refuses namespaces, links or overlays; empty when it grants them."""
    paths.own.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="probe-", dir=paths.own)  # several may ask at once
    try:
        spaces = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        answer = run([*spaces, "sh", "-c", _PROBE, "probe", folder], check=False, timeout_s=20)
        return "" if answer.returncode == 0 else (answer.stderr.strip() or f"status {answer.returncode}")
    except LabError as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _available_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
