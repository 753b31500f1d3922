"""Where a model's files lie on a node, and what is known about them without reading them.

weights_dir/<owner>/<name>/<commit>/<path>                          the files, plain, no symlinks
weights_dir/<owner>/<name>/<commit>/.spark_pipeline/part/<path>     what is being downloaded
                                                   /bad/<path>      set aside: not the wanted bytes
                                                   /proofs.json     digests found, by size, times, inode and boot
                                                   /complete.json   the marker, written last: manifest and boot
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from spark_pipeline.weights.node.messages import AbsentFile, BadFile, Problem, Report, Request, WantedFile
from spark_pipeline.weights.node.proofs import Proofs, boot_id, sync_directory

STATE_DIRECTORY = ".spark_pipeline"
# Where rsync keeps what it did not finish, in the folder of each such file (weights/rsync.py).
RSYNC_PARTIAL = ".spark_pipeline-partial"


def is_safe_path(path: str) -> bool:
    """Whether a path from a hub may be joined to a directory here: it stays inside, and out of our own corners."""
    parts = PurePosixPath(path).parts
    spelled_plainly = path == "/".join(parts) and path not in ("", ".") and "\0" not in path
    is_ours = spelled_plainly and (parts[0] == STATE_DIRECTORY or RSYNC_PARTIAL in parts)
    return spelled_plainly and not is_ours and not path.startswith("/") and ".." not in parts


def follow_no_link(path: str, flags: int) -> int:
    """The `opener` for files of our own: a link in their place would have us write into somebody else's file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


class Model:
    """The directory of one commit."""

    def __init__(self, request: Request) -> None:
        for path in (request.repo, request.commit, *(file.path for file in request.files)):
            if not is_safe_path(path):
                raise Problem("path", f"the path {path!r} would leave the model's directory")
        self.weights_dir = Path(request.weights_dir)
        self.directory = self.weights_dir / request.repo / request.commit
        self.state = self.directory / STATE_DIRECTORY
        self.files = request.files
        self.proofs = Proofs(self.state / "proofs.json")

    def path(self, file: WantedFile) -> Path:
        return self.directory / file.path

    def part(self, file: WantedFile) -> Path:
        return self.state / "part" / file.path

    def aside(self, file: WantedFile) -> Path:
        return self.state / "bad" / file.path

    def set_aside(self, file: WantedFile, found: Path) -> None:
        """Move a file with wrong bytes out of the engine's sight. The last bad one of each path is kept to look at."""
        self.marker.unlink(missing_ok=True)
        aside = self.aside(file)
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.replace(found, aside)

    def put_in_place(self, file: WantedFile, part: Path) -> None:
        """Give a complete, proven part its name. After this a crash cannot lose it."""
        final = self.path(file)
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, final)
        sync_directory(final.parent)
        self.proofs.add(file, os.lstat(final))

    def remove_leftovers(self) -> None:
        """Once all files are in place, what one way of fetching began and another one finished only takes room."""
        shutil.rmtree(self.state / "part", ignore_errors=True)
        for folder in {self.path(file).parent for file in self.files}:
            shutil.rmtree(folder / RSYNC_PARTIAL, ignore_errors=True)

    def survey(self, *, rehash: bool = False, set_aside: Iterable[BadFile] = ()) -> Report:
        """One lstat a file and a directory; nothing is read but our own two small files."""
        absent: list[AbsentFile] = []
        unproven: list[str] = []
        before_restart: list[str] = []
        bad: list[BadFile] = []
        obstacles = Obstacles(self.weights_dir)
        for own in (self.marker, self.state / "lock"):
            obstacles.look_at(own)
        for file in self.files:
            # These two are written into; without their folders, as ever after sealing, they cost nothing.
            for own in (self.part(file), self.aside(file)):
                obstacles.look_at(own)
            status = obstacles.look_at(self.path(file))
            if status is None:
                absent.append(AbsentFile(file.path, min(_size(self.part(file)), file.size_bytes)))
            elif status.st_size != file.size_bytes:
                bad.append(BadFile(file.path, f"{file.size_bytes} bytes", f"{status.st_size} bytes"))
            elif rehash or not self.proofs.hold(file, status):
                unproven.append(file.path)
                if self.proofs.held_before_restart(file, status):
                    before_restart.append(file.path)
        ground = next(path for path in (self.state, *self.state.parents) if path.exists())
        return Report(
            free_bytes=shutil.disk_usage(ground).free,
            obstacle=obstacles.found,
            unwritable=_unwritable(ground),
            sealed=sealed_manifest(self.directory, boot_id()),
            has_rsync=shutil.which("rsync") is not None,
            absent=tuple(absent),
            unproven=tuple(unproven),
            before_restart=tuple(before_restart),
            bad=tuple(bad),
            set_aside=tuple(set_aside),
        )

    @property
    def marker(self) -> Path:
        return marker_of(self.directory)


def marker_of(directory: Path) -> Path:
    return directory / STATE_DIRECTORY / "complete.json"


def sealed_manifest(directory: Path, during_boot: str | None = None) -> str:
    """The manifest's sha256 in a revision's marker; '' without one, or where it was written during another boot."""
    try:
        marker = json.loads(marker_of(directory).read_text())
        return marker["manifest_sha256"] if during_boot in (None, marker.get("boot_id")) else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


class Obstacles:
    """Looks along each path below weights_dir, which may itself be a link to another disk; nothing below it may."""

    def __init__(self, weights_dir: Path) -> None:
        self._weights_dir = weights_dir
        self._directories: dict[Path, bool] = {}
        self.found = ""

    def look_at(self, path: Path) -> os.stat_result | None:
        """The file's own status, None where there is none. What is in the way is remembered in `found`."""
        inside = path.relative_to(self._weights_dir).parts
        here = self._weights_dir
        for part in inside[:-1]:
            here = here / part
            if here not in self._directories:
                self._directories[here] = self._is_directory(here)
            if not self._directories[here]:
                return None
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            self._remember(path, status)
        return status

    def _is_directory(self, path: Path) -> bool:
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(status.st_mode):
            self._remember(path, status)
            return False
        return True

    def _remember(self, path: Path, status: os.stat_result) -> None:
        is_link = stat.S_ISLNK(status.st_mode)
        kind = f"a symlink to {path.readlink()}" if is_link else "not what it should be (file or directory)"
        self.found = self.found or f"{path} is {kind}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _unwritable(ground: Path) -> str:
    """Why this user may not write in `ground`, the nearest directory that exists; '' when it may."""
    if os.access(ground, os.W_OK | os.X_OK):
        return ""
    if os.statvfs(ground).f_flag & os.ST_RDONLY:
        return f"{ground} is on a file system that is mounted read-only"
    status = ground.stat()
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    me = pwd.getpwuid(os.getuid()).pw_name
    return f"{ground} belongs to {owner} with mode {stat.S_IMODE(status.st_mode):o}; the pipeline logs in as {me}"
