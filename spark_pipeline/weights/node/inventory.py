"""Which revisions lie below weights_dir, how large they are, and making one go."""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from spark_pipeline.weights.node.layout import STATE_DIRECTORY, is_safe_path, sealed_manifest
from spark_pipeline.weights.node.messages import Inventory, Problem, Request, StoredRevision
from spark_pipeline.weights.node.siblings import COMMIT, names_may_go
from spark_pipeline.weights.node.verify import lock

_GOING = ".spark_pipeline-going-"


def inventory(weights_dir: Path) -> Inventory:
    """Every <owner>/<name>/<commit> with files of ours in it, and what an interrupted removal left."""
    found: list[StoredRevision] = []
    for directory in sorted(_revisions(weights_dir)):
        files, size_bytes, shared_bytes = _measure(directory)
        _, set_aside_bytes, _ = _measure(directory / STATE_DIRECTORY / "bad")
        repo = directory.parent.relative_to(weights_dir).as_posix()
        commit = directory.name.removeprefix(_GOING)
        complete = bool(sealed_manifest(directory))
        found.append(StoredRevision(repo, commit, files, size_bytes, shared_bytes, complete, set_aside_bytes))
    ground = next(path for path in (weights_dir, *weights_dir.parents) if path.exists())
    return Inventory(tuple(found), shutil.disk_usage(ground).free)


def remove(request: Request) -> Inventory:
    """Remove one revision: it goes out of sight at once, under a name that no run looks for, then from the disk.

    Raises:
        Problem: it is not there, was not made by us, or a run works on it.
    """
    weights_dir = Path(request.weights_dir)
    if not is_safe_path(request.repo) or not COMMIT.fullmatch(request.commit):
        raise Problem("request", "this names no revision", f"{request.repo} {request.commit}")
    directory = weights_dir / request.repo / request.commit
    going = directory.with_name(_GOING + request.commit)
    if directory.is_dir():
        if not (directory / STATE_DIRECTORY).is_dir() or directory.is_symlink():
            raise Problem("files", "this directory was not made by spark_pipeline", str(directory))
        with lock(directory / STATE_DIRECTORY, wait=False):
            shutil.rmtree(going, ignore_errors=True)
            os.replace(directory, going)
    if not going.is_dir():
        raise Problem("files", "there is no such revision here", str(directory))
    with names_may_go(going):
        shutil.rmtree(going)
    return inventory(weights_dir)


def _revisions(weights_dir: Path) -> Iterator[Path]:
    for directory in weights_dir.glob("*/*/*"):
        is_ours = directory.name.startswith(_GOING) or (directory / STATE_DIRECTORY).is_dir()
        if is_ours and COMMIT.fullmatch(directory.name.removeprefix(_GOING)) and not directory.is_symlink():
            yield directory


def _measure(directory: Path) -> tuple[int, int, int]:
    """Files that belong to the model; bytes of everything there (parts and files set aside take room too), and how many
    of these bytes have a name outside as well. A file under several names here has its bytes once.

    A run may be at work: what is gone by the time it is looked at is passed over (os.walk does the same)."""
    files = 0
    names: Counter[tuple[int, int]] = Counter()
    found: dict[tuple[int, int], os.stat_result] = {}
    for folder, _, entries in os.walk(directory):
        is_own = Path(folder).is_relative_to(directory / STATE_DIRECTORY)
        for entry in entries:
            try:
                status = os.lstat(Path(folder, entry))
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                inode = (status.st_dev, status.st_ino)
                files += not is_own
                names[inode] += 1
                found[inode] = status
    size_bytes = {inode: status.st_blocks * 512 for inode, status in found.items()}
    shared_bytes = sum(size_bytes[inode] for inode, status in found.items() if status.st_nlink > names[inode])
    return files, sum(size_bytes.values()), shared_bytes
