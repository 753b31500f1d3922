"""Reading every byte: digests with all cores, what is wrong set aside, the marker written last."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from spark_pipeline.weights.node.layout import Model, follow_no_link
from spark_pipeline.weights.node.messages import BadFile, Counter, Problem, Report, Request, WantedFile, emit
from spark_pipeline.weights.node.proofs import boot_id, write_json
from spark_pipeline.weights.node.shards import check_shards

BLOCK_BYTES = 1 << 20
MAPPED_BLOCK_BYTES = 8 << 20
# From <linux/mman.h>, since Linux 5.14; Python's mmap has no name for it yet.
MADV_POPULATE_READ = 22
# On unified memory the page cache of 120 GB of weights starves the GPU: it is given back while we go, not at the end.
WINDOW_BYTES = 256 << 20


def new_digest(file: WantedFile) -> Any:
    if file.algorithm == "sha256":
        return hashlib.sha256()
    # git's blob id, which is all that a hub tells about small files; not used against forgery
    return hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)


def give_back(stream: FileIO, up_to_byte: int = 0) -> None:
    """Let the kernel forget the file's pages, all (0) or the first ones: what was read ahead is still wanted.

    They must be clean for that, so call it after fsync. Needs no root.
    """
    os.posix_fadvise(stream.fileno(), 0, up_to_byte, os.POSIX_FADV_DONTNEED)


def sync(stream: FileIO) -> None:
    """Bring the file to the disk, and let the kernel forget it.

    Also when the disk refuses: a page that could not be written passes for clean then, and the next sync says that all
    is well. Forgotten, it is read from the disk by the next run, which finds what really lies there.
    """
    try:
        os.fsync(stream.fileno())
    finally:
        give_back(stream)


def feed(stream: FileIO, digest: Any, counter: Counter | None = None) -> None:
    """Read the whole file into `digest`; `stream` stands at its end afterwards.

    Reading and digesting release the interpreter lock: threads scale. Where files can be mapped they are, which saves
    the copy out of the page cache; from where that does not work (the kernel is older than 5.14, the file was cut
    short meanwhile, the disk cannot read it) plain reading goes on, and tells what is wrong.
    """
    stream.seek(_feed_mapped(stream, digest, counter))
    buffer = memoryview(bytearray(BLOCK_BYTES))
    in_window = 0
    while count := stream.readinto(buffer):
        digest.update(buffer[:count])
        if counter:
            counter.add(count)
        in_window += count
        if in_window >= WINDOW_BYTES:
            in_window = 0
            give_back(stream, stream.tell())


def _feed_mapped(stream: FileIO, digest: Any, counter: Counter | None) -> int:
    """How many bytes, from the first on, went into `digest`."""
    done = 0
    size = os.fstat(stream.fileno()).st_size
    with suppress(OSError, ValueError):  # ValueError: mmap sees that the file has become shorter
        while done < size:
            start, length = done, min(WINDOW_BYTES, size - done)
            with (
                mmap.mmap(stream.fileno(), length, access=mmap.ACCESS_READ, offset=start) as window,
                memoryview(window) as mapped,
            ):
                for offset in range(0, length, MAPPED_BLOCK_BYTES):
                    block = min(MAPPED_BLOCK_BYTES, length - offset)
                    # Touching a page that cannot be had would end the program (SIGBUS); asking for it is an error only.
                    window.madvise(MADV_POPULATE_READ, offset, block)
                    digest.update(mapped[offset : offset + block])
                    done += block
                    if counter:
                        counter.add(block)
            give_back(stream, done)
    return done


@contextmanager
def lock(state: Path, *, wait: bool = True) -> Iterator[None]:
    """One program at a time works on a model's directory; the second waits, and finds the first one's work done.

    Args:
        state: the directory's own corner (STATE_DIRECTORY in it), which must be there.

    Raises:
        Problem: another program works there, and `wait` is off.
    """
    with open(state / "lock", "w", opener=follow_no_link) as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait:
                    raise Problem("files", "another run works on this revision", str(state.parent)) from None
                if not waiting:
                    emit("note", text=f"another run works on {state.parent}; waiting for it")
                waiting = True
                emit("progress", bytes=0)
                time.sleep(1)
        yield


def verify(model: Model, rehash: bool) -> Report:
    """Digest what is not proven (everything with `rehash`); move away what is not as it should be."""
    by_path = {file.path: file for file in model.files}
    before = model.survey(rehash=rehash)
    if before.absent or before.bad:
        model.marker.unlink(missing_ok=True)
    for bad in before.bad:
        model.set_aside(by_path[bad.path], model.directory / bad.path)
    # The longest first: one file is one thread's work, and the last to end should be a short one.
    files = sorted((by_path[path] for path in before.unproven), key=lambda file: -file.size_bytes)
    with model.proofs.gathered(), Counter() as counter, ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = [bad for bad in pool.map(lambda file: _prove(model, file, counter), files) if bad]
    after = model.survey(set_aside=(*before.bad, *wrong))
    return dataclasses.replace(after, hashed_files=len(files), hashed_bytes=counter.bytes)


def _prove(model: Model, file: WantedFile, counter: Counter) -> BadFile | None:
    path = model.path(file)
    status, digest = read(path, file, counter)
    if digest != file.digest:
        model.set_aside(file, path)
        return BadFile(file.path, f"{file.algorithm} {file.digest}", f"{file.algorithm} {digest}")
    model.proofs.add(file, status)
    return None


def read(path: Path, file: WantedFile, counter: Counter) -> tuple[os.stat_result, str]:
    """The digest of what is there under `path`, and how the file stood before it was read."""
    digest = new_digest(file)
    with path.open("rb", buffering=0) as stream:
        status = os.fstat(stream.fileno())
        feed(stream, digest, counter)
        sync(stream)  # rsync leaves the bytes to the kernel
    return status, digest.hexdigest()


def seal(model: Model, request: Request) -> Report:
    """Write the marker, if every file is proven and the model hangs together."""
    report = model.survey()
    unfinished = [*(file.path for file in report.absent), *report.unproven, *(bad.path for bad in report.bad)]
    if unfinished or report.obstacle:
        raise Problem("bytes", "files changed while they were being proven", report.obstacle or ", ".join(unfinished))
    check_shards(model)
    model.remove_leftovers()
    if report.sealed == request.manifest_sha256:
        return report
    write_json(
        model.marker,
        {
            "repo": request.repo,
            "commit": request.commit,
            "manifest_sha256": request.manifest_sha256,
            "boot_id": boot_id(),
            "sealed_at": time.time(),
            "files": [dataclasses.asdict(file) for file in model.files],
        },
    )
    return dataclasses.replace(report, sealed=request.manifest_sha256)


def give_back_all(model: Model) -> None:
    """After copying: the kernel may forget the pages that rsync read or wrote."""
    for file in model.files:
        with model.path(file).open("rb", buffering=0) as stream:
            give_back(stream)
