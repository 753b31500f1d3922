"""Debian packages the lab uses on this machine: what is missing, and how it gets here."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab.commands import run, search_path
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.progress import Say, heartbeat

REGISTRY_PACKAGE = "docker-registry"


@dataclass(frozen=True)
class Tool:
    """A program and the Debian package that has it."""

    program: str
    package: str


TOOLS = (
    Tool("debootstrap", "debootstrap"),
    Tool("ip", "iproute2"),
    Tool("ssh", "openssh-client"),
    Tool("ssh-keygen", "openssh-client"),
    Tool("mount", "mount"),
    Tool("nsenter", "util-linux"),
    Tool("unshare", "util-linux"),
    Tool("setpriv", "util-linux"),
    Tool("setsid", "util-linux"),
    Tool("chroot", "coreutils"),
)


def missing_tools() -> tuple[Tool, ...]:
    """Tools that are not on this machine."""
    return tuple(tool for tool in TOOLS if not shutil.which(tool.program, path=search_path()))


def registry_program(paths: LabPaths) -> Path:
    """The registry's program: the machine's own when it has one, else ours (see `ensure_packages`)."""
    installed = shutil.which("docker-registry", path=search_path())
    return Path(installed) if installed else paths.tools / "usr/bin/docker-registry"


def ensure_packages(progress: Say, paths: LabPaths | None = None) -> None:
    """Install what is missing with apt-get; nothing missing: nothing done, no network.

    The registry is only unpacked into the cache: installed, its package starts a registry on every address of
    the machine, and a `policy-rc.d` against that would stay behind when we are killed.

    Raises:
        LabError: apt-get failed; with its words.
    """
    paths = paths or LabPaths.default()
    wanted = sorted({tool.package for tool in missing_tools()})
    registry = registry_program(paths)
    if not wanted and registry.exists():
        return
    if os.geteuid() != 0:
        raise LabError("apt-get needs root", remedy="run it with sudo, or as root")
    if not shutil.which("apt-get"):
        raise LabError("the lab's tools can be installed on Debian only: there is no apt-get here")
    progress("apt-get update")
    _apt(progress, "update")
    if wanted:
        progress(f"apt-get install {' '.join(wanted)}")
        _apt(progress, "install", "--yes", "--no-install-recommends", *wanted)
    if not registry.exists():
        progress(f"unpacking {REGISTRY_PACKAGE} into {paths.tools}, not installing it")
        _unpack(progress, REGISTRY_PACKAGE, paths.tools)


def _unpack(say: Say, package: str, target: Path) -> None:
    """Fetch a package and unpack it below `target`, whole or not at all."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    # apt-get fetches as user _apt where it may and complains where it may not (a folder of root's).
    _apt(say, "-o", "APT::Sandbox::User=root", "download", package, cwd=fresh)
    archive = next(fresh.glob("*.deb"))
    run(["dpkg-deb", "--extract", str(archive), str(fresh)], timeout_s=120)
    archive.unlink()
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def _apt(say: Say, *words: str, cwd: Path | None = None) -> None:
    with heartbeat(say, f"apt-get {words[0]}"):
        run(
            ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *words],
            timeout_s=900,
            extra_environment={"DEBIAN_FRONTEND": "noninteractive"},
            cwd=cwd,
        )
