"""What goes in (one request as JSON) and what comes out (events, one JSON object a line)."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class WantedFile:
    """One file of the model. `algorithm` is 'sha256', or 'git_sha1' (of `blob <size>\\0` and the content)."""

    path: str
    size_bytes: int
    algorithm: str
    digest: str


@dataclass(frozen=True)
class Source:
    """Where files come from: GET <base_url>/<path>. The token goes to that host and to no other.

    Args:
        direct: by no proxy, whatever the node's environment says: the source is the head, over the fabric.
    """

    base_url: str
    token: str = field(default="", repr=False)
    files_at_once: int = 8
    stall_seconds: float = 60.0
    direct: bool = False


@dataclass(frozen=True)
class Request:
    """One piece of work on one commit of one model: `weights_dir`/`repo`/`commit` holds `files`."""

    operation: str
    weights_dir: str
    repo: str
    commit: str
    manifest_sha256: str
    files: tuple[WantedFile, ...]
    rehash: bool = False
    source: Source | None = None
    listen_on: str = ""
    receivers: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Request:
        fields: dict[str, Any] = json.loads(text)
        fields["files"] = tuple(WantedFile(**file) for file in fields["files"])
        fields["source"] = Source(**fields["source"]) if fields["source"] else None
        return cls(**fields)


@dataclass(frozen=True)
class AbsentFile:
    """A file that is not there; `part_bytes` of it were fetched before."""

    path: str
    part_bytes: int


@dataclass(frozen=True)
class BadFile:
    """A file whose size or digest is not the wanted one."""

    path: str
    expected: str
    actual: str


@dataclass(frozen=True)
class LinkableFile:
    """A file that need not be brought: revision `commit` of the same repository has the same bytes on this node.

    Args:
        read_first: they were proven before the node was restarted, so they are read before they are linked.
    """

    path: str
    commit: str
    read_first: bool


@dataclass(frozen=True)
class Report:
    """How the model's directory stands on this node after the work, and how much work it was.

    Args:
        free_bytes: what this user may still write where the directory is, or will be.
        obstacle: what stands in the way and is not ours to remove; '' when nothing does.
        unwritable: why this user may not write there; '' when it may.
        sealed: manifest's sha256 in the marker that is written last; '' without marker.
        absent, unproven, bad: the files that are not proven. All others are: same size, times and inode as when
            their digest was found to be the wanted one.
        before_restart: those of `unproven` that were proven and are as they were, but the node was restarted since.
        linkable: those of `absent` and `bad` that 'verify' will take from another revision here; only of 'inspect'.
        set_aside: bad files that this call moved away.
    """

    free_bytes: int = 0
    obstacle: str = ""
    unwritable: str = ""
    sealed: str = ""
    has_rsync: bool = False
    absent: tuple[AbsentFile, ...] = ()
    unproven: tuple[str, ...] = ()
    bad: tuple[BadFile, ...] = ()
    set_aside: tuple[BadFile, ...] = ()
    hashed_files: int = 0
    hashed_bytes: int = 0
    downloaded_bytes: int = 0
    before_restart: tuple[str, ...] = ()
    linkable: tuple[LinkableFile, ...] = ()
    linked_files: int = 0

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Report:
        return cls(
            **{
                **fields,
                "absent": tuple(AbsentFile(**file) for file in fields["absent"]),
                "unproven": tuple(fields["unproven"]),
                "before_restart": tuple(fields["before_restart"]),
                "linkable": tuple(LinkableFile(**file) for file in fields["linkable"]),
                "bad": tuple(BadFile(**file) for file in fields["bad"]),
                "set_aside": tuple(BadFile(**file) for file in fields["set_aside"]),
            }
        )


@dataclass(frozen=True)
class StoredRevision:
    """One revision below weights_dir.

    Args:
        files: of the model; `size_bytes` on disk, with parts and what was set aside.
        shared_bytes: of these, what another name on the disk holds too (linked between revisions): removing this
            revision alone does not free them.
        complete: the marker is there.
        set_aside_bytes: of these, what lies under .spark_pipeline/bad, which no engine reads.
    """

    repo: str
    commit: str
    files: int
    size_bytes: int
    shared_bytes: int
    complete: bool
    set_aside_bytes: int = 0


@dataclass(frozen=True)
class Inventory:
    """Every revision on this node, and what is free beside them."""

    revisions: tuple[StoredRevision, ...]
    free_bytes: int

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Inventory:
        return cls(tuple(StoredRevision(**one) for one in fields["revisions"]), fields["free_bytes"])


class Problem(Exception):
    """The work cannot be done. `kind` chooses the error on the other side, `observed` is the evidence."""

    def __init__(self, kind: str, what: str, observed: str = "") -> None:
        super().__init__(what)
        self.kind, self.what, self.observed = kind, what, observed


def disk_problem(what: str, error: OSError) -> Problem:
    """Whether room is missing or the disk does not do its work: the remedies differ."""
    kind = "space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "files"
    return Problem(kind, what, f"{error.strerror}: {error.filename}" if error.filename else str(error))


_lock = threading.Lock()


def emit(event: str, **fields: object) -> None:
    """Write one event. When nobody listens any more (the connection broke, the run was cancelled) the program ends:
    nothing else would tell it, as an ssh server does not end what it started."""
    line = json.dumps({"event": event, **fields}) + "\n"
    try:
        with _lock:
            sys.stdout.write(line)
            sys.stdout.flush()
    except OSError:
        os._exit(141)


class Counter:
    """Bytes done, counted by several threads, told once a second so that the other side sees life."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._teller = threading.Thread(target=self._tell, name="progress", daemon=True)

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count

    def __enter__(self) -> Counter:
        self._teller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._teller.join()

    def _tell(self) -> None:
        while not self._ended.wait(1.0):
            emit("progress", bytes=self.bytes)
