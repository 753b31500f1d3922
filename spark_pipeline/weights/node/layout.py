"""Where a model's files lie on a node, and what is known about them without reading them.

weights_dir/<owner>/<name>/<commit>/<path>                          the files, plain, no symlinks
weights_dir/<owner>/<name>/<commit>/.spark_pipeline/part/<path>     what is being downloaded
                                                   /bad/<path>      set aside: not the wanted bytes
                                                   /proofs.json     digests found, by size, times and inode
                                                   /complete.json   the marker, written last: the manifest
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from spark_pipeline.weights.node.messages import AbsentFile, BadFile, Problem, Report, Request, WantedFile

STATE_DIRECTORY = ".spark_pipeline"


def is_safe_path(path: str) -> bool:
    """Whether a path from a hub may be joined to a directory here: it stays inside, and out of our own corner."""
    parts = PurePosixPath(path).parts
    spelled_plainly = path == "/".join(parts) and path not in ("", ".") and "\0" not in path
    return spelled_plainly and not path.startswith("/") and ".." not in parts and parts[0] != STATE_DIRECTORY


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

    def set_aside(self, file: WantedFile, found: Path) -> None:
        """Move a file with wrong bytes out of the engine's sight. The last bad one of each path is kept to look at."""
        self.marker.unlink(missing_ok=True)
        aside = self.state / "bad" / file.path
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.replace(found, aside)

    def put_in_place(self, file: WantedFile, part: Path) -> None:
        """Give a complete, proven part its name. After this a crash cannot lose it."""
        final = self.path(file)
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, final)
        sync_directory(final.parent)
        self.proofs.add(file, os.lstat(final))

    def survey(self, *, rehash: bool = False, set_aside: Iterable[BadFile] = ()) -> Report:
        """One lstat a file and a directory; nothing is read but our own two small files."""
        absent: list[AbsentFile] = []
        unproven: list[str] = []
        bad: list[BadFile] = []
        obstacles = Obstacles(self.weights_dir)
        obstacles.look_at(self.marker)
        for file in self.files:
            status = obstacles.look_at(self.path(file))
            if status is None:
                absent.append(AbsentFile(file.path, min(_size(self.part(file)), file.size_bytes)))
            elif status.st_size != file.size_bytes:
                bad.append(BadFile(file.path, f"{file.size_bytes} bytes", f"{status.st_size} bytes"))
            elif rehash or not self.proofs.hold(file, status):
                unproven.append(file.path)
        ground = next(path for path in (self.state, *self.state.parents) if path.exists())
        return Report(
            free_bytes=shutil.disk_usage(ground).free,
            obstacle=obstacles.found,
            unwritable=_unwritable(ground),
            sealed=sealed_manifest(self.directory),
            has_rsync=shutil.which("rsync") is not None,
            absent=tuple(absent),
            unproven=tuple(unproven),
            bad=tuple(bad),
            set_aside=tuple(set_aside),
        )

    @property
    def marker(self) -> Path:
        return marker_of(self.directory)


def marker_of(directory: Path) -> Path:
    return directory / STATE_DIRECTORY / "complete.json"


def sealed_manifest(directory: Path) -> str:
    """The manifest's sha256 in a revision's marker; '' without one."""
    try:
        return json.loads(marker_of(directory).read_text())["manifest_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
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


class Proofs:
    """Digests that were found in files, good as long as size, times and inode of the file stay what they were.

    The time of change (ctime) is in the key besides mtime: a tool can set the latter back, not the former.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._known: dict[str, list[object]] = json.loads(path.read_text())
        except (OSError, ValueError):
            self._known = {}

    def hold(self, file: WantedFile, status: os.stat_result) -> bool:
        return self._known.get(file.path) == _proof(file, status)

    def add(self, file: WantedFile, status: os.stat_result) -> None:
        """Written at once: a run that is ended keeps what it has proven."""
        with self._lock:
            self._known[file.path] = _proof(file, status)
            write_json(self._path, self._known)


def _proof(file: WantedFile, status: os.stat_result) -> list[object]:
    when = (status.st_mtime_ns, status.st_ctime_ns)
    return [file.algorithm, file.digest, status.st_size, *when, status.st_ino]


def write_json(path: Path, content: object) -> None:
    """Whole or not at all, and on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _unwritable(ground: Path) -> str:
    """Why this user may not write in `ground`, the nearest directory that exists; '' when it may."""
    if os.access(ground, os.W_OK | os.X_OK):
        return ""
    status = ground.stat()
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    me = pwd.getpwuid(os.getuid()).pw_name
    return f"{ground} belongs to {owner} with mode {stat.S_IMODE(status.st_mode):o}; the pipeline logs in as {me}"
