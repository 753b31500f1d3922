"""Cgroups that the nodes' engines make on the host and that nobody removes when a node is switched off."""

from __future__ import annotations

import os
import time
from pathlib import Path

from spark_pipeline.errors import LabError

ROOT = Path("/sys/fs/cgroup")


def hierarchies(root: Path = ROOT) -> tuple[Path, ...]:
    """The tops of all hierarchies: one with version 2, one for each controller with version 1."""
    if (root / "cgroup.controllers").exists():
        return (root,)
    # Version 1 has links such as cpu -> cpu,cpuacct; the folders behind them are enough.
    return tuple(path for path in sorted(root.iterdir()) if path.is_dir() and not path.is_symlink())


def find(name: str, root: Path = ROOT) -> tuple[Path, ...]:
    """The groups of this name right below the tops."""
    return tuple(top / name for top in hierarchies(root) if (top / name).is_dir())


def remove(name: str, wait_s: float = 10) -> None:
    """Remove a group with everything below it. Its processes must be gone.

    Raises:
        LabError: the kernel did not let go of it in time.
    """
    deadline = time.monotonic() + wait_s
    for top in find(name):
        while top.is_dir():
            try:
                for folder, _, _ in os.walk(top, topdown=False):
                    Path(folder).rmdir()
            except FileNotFoundError:
                continue  # the engine's own clean-up was faster
            except OSError as error:
                # Busy for a moment after its last process ended.
                if time.monotonic() > deadline:
                    raise LabError(f"the cgroup {top} cannot be removed", observed=str(error)) from error
                time.sleep(0.05)
