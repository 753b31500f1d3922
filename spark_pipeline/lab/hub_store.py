"""The hub's repositories as plain directories, so that publishing is writing files and a test can look at everything.

    ROOT/<owner>/<name>/<40-hex commit>/<path>    one directory for each revision, never changed once written
    ROOT/<owner>/<name>/refs.json                 {"main": "<40-hex commit>"}: moving a branch is rewriting this file

Nothing is kept in memory but digests of files, so a server that runs sees each change with the next request.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from spark_pipeline.errors import LabError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
# The real hub keeps weights in Git LFS: for these it tells a sha256, for every other file only the git blob's sha1.
_LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")


@dataclass(frozen=True)
class StoredFile:
    """One file of one revision, with both digests that the hub's API speaks of."""

    path: str
    location: Path
    size_bytes: int
    git_sha1: str
    sha256: str

    @property
    def is_lfs(self) -> bool:
        return self.path.endswith(_LFS_SUFFIXES)

    @property
    def etag(self) -> str:
        """What the hub sends as ETag: sha256 for LFS, git blob id for the rest."""
        return self.sha256 if self.is_lfs else self.git_sha1


@dataclass(frozen=True)
class Revision:
    """One resolved revision of one repository."""

    repo: str
    commit: str
    directory: Path

    def files(self) -> list[StoredFile]:
        """Every file, sorted by path; digests come from a cache keyed by size and time of change."""
        found = []
        for location in sorted(path for path in self.directory.rglob("*") if path.is_file()):
            status = location.stat()
            git_sha1, sha256 = _digests(location, status.st_size, status.st_mtime_ns)
            name = location.relative_to(self.directory).as_posix()
            found.append(StoredFile(name, location, status.st_size, git_sha1, sha256))
        return found


def commit_of(files: Mapping[str, bytes]) -> str:
    """40-hex identity of a set of files: the same contents give the same commit on every machine."""
    listing = "".join(f"{path}\0{hashlib.sha256(files[path]).hexdigest()}\n" for path in sorted(files))
    return hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()


def publish(root: Path, repo: str, files: Mapping[str, bytes], branch: str | None = "main") -> str:
    """Write a revision and let `branch` point to it; returns the commit.

    A revision that is there already is not written again. With `branch=None` no branch moves.

    Raises:
        LabError: `repo` is not of the form owner/name.
    """
    if not _NAME.fullmatch(repo):
        raise LabError("Cannot publish on the lab's hub", observed=f"repository {repo!r}", remedy="Name it owner/name.")
    commit = commit_of(files)
    target = root / repo / commit
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written beside and renamed: a server that runs never shows half a revision.
        unfinished = Path(tempfile.mkdtemp(prefix=".publishing-", dir=target.parent))
        try:
            for path, content in files.items():
                (unfinished / path).parent.mkdir(parents=True, exist_ok=True)
                (unfinished / path).write_bytes(content)
            unfinished.chmod(0o755)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    if branch is not None:
        move_branch(root, repo, branch, commit)
    return commit


def move_branch(root: Path, repo: str, branch: str, commit: str) -> None:
    """Let `branch` of `repo` point to `commit`, as a push to the real hub would.

    Raises:
        LabError: the repository has no such commit.
    """
    if not (root / repo / commit).is_dir():
        raise LabError(
            f"Cannot move branch {branch} of {repo}",
            observed=f"no revision {commit}; there are {', '.join(revisions(root, repo)) or 'none'}",
            remedy="Publish the revision first.",
        )
    refs = {**read_refs(root, repo), branch: commit}
    unfinished = root / repo / f".refs-{os.getpid()}.json"
    unfinished.write_text(json.dumps(refs, indent=2, sort_keys=True) + "\n")
    unfinished.replace(root / repo / "refs.json")


def read_refs(root: Path, repo: str) -> dict[str, str]:
    """Branch name -> commit; empty for a repository that does not exist."""
    try:
        return json.loads((root / repo / "refs.json").read_text())
    except FileNotFoundError:
        return {}


def revisions(root: Path, repo: str) -> list[str]:
    """Commits of a repository, sorted; empty for a repository that does not exist."""
    return sorted(path.name for path in (root / repo).glob("*") if _COMMIT.fullmatch(path.name))


def resolve(root: Path, repo: str, revision: str) -> Revision | None:
    """The revision that a branch name or 40-hex commit means now, None if there is none."""
    if not _NAME.fullmatch(repo):
        return None
    commit = read_refs(root, repo).get(revision, revision)
    directory = root / repo / commit
    return Revision(repo, commit, directory) if _COMMIT.fullmatch(commit) and directory.is_dir() else None


@lru_cache(maxsize=4096)
def _digests(location: Path, size_bytes: int, mtime_ns: int) -> tuple[str, str]:
    """git blob sha1 and sha256; size and time of change are there as the cache's key."""
    del mtime_ns
    git = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
    sha = hashlib.sha256()
    with location.open("rb") as stream:
        while block := stream.read(1 << 20):
            git.update(block)
            sha.update(block)
    return git.hexdigest(), sha.hexdigest()
