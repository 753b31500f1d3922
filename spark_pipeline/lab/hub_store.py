"""The hub's repositories as plain directories, so that publishing is writing files and a test can look at everything.

    ROOT/<owner>/<name>/<40-hex commit>/<path>    one directory for each revision, never changed once written
    ROOT/<owner>/<name>/refs.json                 {"main": "<40-hex commit>"}: moving a branch is rewriting this file
    ROOT/<owner>/<name>/<commit>.digests.json     made-up digests of files that are mostly a hole, where there are any

A file with a hole has its first bytes and its size, and zeros for the rest that nobody has written: enough to ask a
repository of 120 GB everything that is asked before a download. Reading such a file whole to hash it would take
minutes, so its digests are made up, and a download of it never verifies: it is for asking only.

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
class Holed:
    """A file to publish whose first bytes are real; up to `size_bytes` nothing is written (a sparse file)."""

    start: bytes
    size_bytes: int


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
        made_up = _made_up_digests(self.directory)
        for location in sorted(path for path in self.directory.rglob("*") if path.is_file()):
            status = location.stat()
            name = location.relative_to(self.directory).as_posix()
            given = made_up.get(name)
            git_sha1, sha256 = given or _digests(location, status.st_size, status.st_mtime_ns)
            found.append(StoredFile(name, location, status.st_size, git_sha1, sha256))
        return found


def commit_of(files: Mapping[str, bytes | Holed]) -> str:
    """40-hex identity of a set of files: the same contents give the same commit on every machine."""
    listing = "".join(f"{path}\0{_sha256(files[path])}\n" for path in sorted(files))
    return hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()


def publish(root: Path, repo: str, files: Mapping[str, bytes | Holed], branch: str | None = "main") -> str:
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
                _write(unfinished / path, content)
            _note_made_up_digests(target, files)
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


def _write(location: Path, content: bytes | Holed) -> None:
    with location.open("wb") as stream:
        stream.write(content.start if isinstance(content, Holed) else content)
        if isinstance(content, Holed):
            stream.truncate(content.size_bytes)


def _sha256(content: bytes | Holed) -> str:
    """The digest of a file; for one with a hole a made-up one that changes with what the file begins with."""
    if isinstance(content, Holed):
        return hashlib.sha256(b"holed %d\0" % content.size_bytes + content.start).hexdigest()
    return hashlib.sha256(content).hexdigest()


def _digests_note(revision: Path) -> Path:
    """Beside the revision's directory: inside, it would be one of its files."""
    return revision.with_name(f"{revision.name}.digests.json")


def _note_made_up_digests(revision: Path, files: Mapping[str, bytes | Holed]) -> None:
    made_up = {path: _sha256(content) for path, content in files.items() if isinstance(content, Holed)}
    if made_up:
        _digests_note(revision).write_text(json.dumps(made_up, indent=2, sort_keys=True) + "\n")


def _made_up_digests(revision: Path) -> dict[str, tuple[str, str]]:
    """Path -> git blob sha1 and sha256, for the files of a revision that cannot be hashed."""
    try:
        noted: dict[str, str] = json.loads(_digests_note(revision).read_text())
    except FileNotFoundError:
        return {}
    return {path: (sha256[:40], sha256) for path, sha256 in noted.items()}


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
