"""Files that another revision of the same repository has on this node: linked instead of brought.

A new revision often differs in a few files only. A hard link is the same file under a second name: nothing is fetched,
and nothing takes room twice. Nothing of ours writes into a model's file (what is fetched is written beside and
renamed), so no revision changes another one's files; when somebody else does, both revisions' proofs end.

When a name of a file comes or goes, its ctime changes, and ctime is in the proofs. So this is done with the locks of
all revisions that may share it, and what was proven right before is noted anew right after.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter as Count
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from spark_pipeline.weights.node.layout import STATE_DIRECTORY, Model, is_safe_path
from spark_pipeline.weights.node.messages import Counter, LinkableFile, Problem, Report, WantedFile, emit
from spark_pipeline.weights.node.proofs import Proofs, sync_directory
from spark_pipeline.weights.node.verify import lock, read

COMMIT = re.compile(r"[0-9a-f]{40}")


def with_linkable(model: Model, report: Report, *, rehash: bool) -> Report:
    """The report, and which of the files that it lacks another revision here has. Changes nothing."""
    by_path = {file.path: file for file in model.files}
    lacking = [by_path[one.path] for one in (*report.absent, *report.bad)]
    if not lacking or report.obstacle:
        return report
    siblings = [Revision(directory) for directory in revisions_beside(model.directory)]
    found: list[LinkableFile] = []
    for file in lacking:
        for twin in _twins(file, siblings)[:1]:
            found.append(LinkableFile(file.path, twin.revision.commit, rehash or twin.read_first))
    return replace(report, linkable=tuple(found))


def link_absent(model: Model, report: Report, *, rehash: bool) -> Report:
    """Give every absent file that another revision here has its name in this one too; the caller holds our lock.

    What was proven before a restart (with `rehash`: everything) is read first. What cannot be linked, for whatever
    reason, stays absent and is brought.
    """
    wanted = {one.path for one in with_linkable(model, report, rehash=rehash).linkable}
    if not wanted:
        return report
    linked: dict[WantedFile, Twin] = {}
    with Counter() as counter:
        try:
            with at_rest(revisions_beside(model.directory)) as siblings:
                own = Revision(model.directory, model.proofs)
                with proofs_kept([*siblings, own]), ThreadPoolExecutor(os.cpu_count()) as pool:
                    # Looked up before the first link: two names may be of one file, and a link changes its ctime.
                    twins = {file: _twins(file, siblings) for file in model.files if file.path in wanted}
                    found = pool.map(lambda file: _link(model, file, twins[file], rehash, counter), twins)
                    linked = {file: twin for file, twin in zip(twins, found, strict=True) if twin}
                _note(model, linked)
        except (OSError, Problem) as error:
            emit("note", text=f"files of other revisions cannot be linked: {error}")
    for commit, count in Count(twin.revision.commit for twin in linked.values()).items():
        emit("note", text=f"{count} files linked from revision {commit}")
    after = model.survey(set_aside=report.set_aside)
    return replace(
        after,
        hashed_files=report.hashed_files,
        hashed_bytes=report.hashed_bytes + counter.bytes,
        linked_files=len(linked),
    )


@contextmanager
def names_may_go(directory: Path) -> Iterator[None]:
    """While a revision is removed: what other revisions share with it stays proven there.

    Raises:
        Problem: a run works on one of them just now.
    """
    is_shared = any(path.is_file() and path.lstat().st_nlink > 1 for path in directory.rglob("*"))
    with at_rest(revisions_beside(directory) if is_shared else ()) as siblings, proofs_kept(siblings):
        yield


def revisions_beside(directory: Path) -> tuple[Path, ...]:
    """The other revisions of the same repository that we made."""
    if not directory.parent.is_dir():
        return ()
    return tuple(
        path
        for path in sorted(directory.parent.iterdir())
        if path != directory and COMMIT.fullmatch(path.name) and (path / STATE_DIRECTORY).is_dir()
        if not path.is_symlink()
    )


@contextmanager
def at_rest(directories: Sequence[Path]) -> Iterator[tuple[Revision, ...]]:
    """Hold the locks of these revisions; it never waits, so two runs cannot wait for each other.

    Raises:
        Problem: a run works on one of them.
    """
    with ExitStack() as locks:
        for directory in directories:
            locks.enter_context(lock(directory / STATE_DIRECTORY, wait=False))
        yield tuple(Revision(directory) for directory in directories)


@contextmanager
def proofs_kept(revisions: Sequence[Revision]) -> Iterator[None]:
    """Names of these revisions' files may come and go in the block; what was proven before it is proven after it."""
    before = [revision.proven() for revision in revisions]
    yield
    for revision, proven in zip(revisions, before, strict=True):
        now = {file: revision.status(file) for file in proven}
        renewed = {
            file: status
            for file, status in now.items()
            if status and status.st_nlink != proven[file].st_nlink and _same_content(status, proven[file])
        }
        if renewed:
            revision.proofs.add_all(renewed)


@dataclass(frozen=True)
class Twin:
    """A file with the wanted bytes, under the name it has in its own revision."""

    revision: Revision
    file: WantedFile
    status: os.stat_result
    read_first: bool

    @property
    def path(self) -> Path:
        return self.revision.directory / self.file.path


class Revision:
    """A revision as far as its own notes tell: nobody needs its manifest for that."""

    def __init__(self, directory: Path, proofs: Proofs | None = None) -> None:
        self.directory = directory
        self.commit = directory.name
        self.proofs = proofs or Proofs(directory / STATE_DIRECTORY / "proofs.json")
        files = [file for file in self.proofs.files() if is_safe_path(file.path)]
        self._files = {file.path: file for file in files}
        self._by_content = {_content(file): file for file in files}

    def status(self, file: WantedFile) -> os.stat_result | None:
        try:
            status = os.lstat(self.directory / file.path)
        except OSError:
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def proven(self) -> dict[WantedFile, os.stat_result]:
        """Every file whose proof holds now."""
        found = {file: self.status(file) for file in self._files.values()}
        return {file: status for file, status in found.items() if status and self.proofs.hold(file, status)}

    def twin(self, file: WantedFile) -> Twin | None:
        """The same bytes under any name, proven now or up to a restart."""
        own = self._by_content.get(_content(file))
        status = self.status(own) if own else None
        if own is None or status is None:
            return None
        holds = self.proofs.hold(own, status)
        if not holds and not self.proofs.held_before_restart(own, status):
            return None
        return Twin(self, own, status, read_first=not holds)


def _twins(file: WantedFile, siblings: Sequence[Revision]) -> list[Twin]:
    """Who has it, those that need not be read first."""
    found = [twin for sibling in siblings if (twin := sibling.twin(file))]
    return sorted(found, key=lambda twin: twin.read_first)


def _link(model: Model, file: WantedFile, twins: Sequence[Twin], rehash: bool, counter: Counter) -> Twin | None:
    for twin in twins:
        if rehash or twin.read_first:
            _, digest = read(twin.path, twin.file, counter)
            if digest != file.digest:
                twin.revision.proofs.forget(twin.file)  # its own next run sees to it
                continue
        final = model.path(file)
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            os.link(twin.path, final, follow_symlinks=False)
        except OSError:
            continue  # another disk, too many links, a foreign owner
        return twin
    return None


def _note(model: Model, linked: dict[WantedFile, Twin]) -> None:
    """After all links are made: write down what is proven now, here and there."""
    proven: dict[WantedFile, os.stat_result] = {}
    renewed: dict[Revision, dict[WantedFile, os.stat_result]] = {}
    for file, twin in list(linked.items()):
        status = os.lstat(model.path(file))
        if _same_content(status, twin.status):
            proven[file] = status
            renewed.setdefault(twin.revision, {})[twin.file] = status
            model.part(file).unlink(missing_ok=True)
        else:  # somebody wrote into it between the look and the link
            model.path(file).unlink()
            del linked[file]
    for folder in {model.path(file).parent for file in linked}:
        sync_directory(folder)
    for revision, files in renewed.items():
        revision.proofs.add_all(files)
    model.proofs.add_all(proven)


def _content(file: WantedFile) -> tuple[str, str, int]:
    return file.algorithm, file.digest, file.size_bytes


def _same_content(one: os.stat_result, other: os.stat_result) -> bool:
    """As far as the file system tells when only names came or went."""
    return all(getattr(one, name) == getattr(other, name) for name in ("st_size", "st_mtime_ns", "st_ino", "st_dev"))
