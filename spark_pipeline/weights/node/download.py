"""Fetching files over HTTP so that nothing is fetched twice and nothing wrong gets a name.

Why not the hub's own client on the node: it would have to be installed there, checks no sha256 over plain HTTP and
starts a file again from byte 0 when its process ended (huggingface_hub issues #3643, #4196).
"""

from __future__ import annotations

import email.utils
import http.client
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_pipeline.weights.node.layout import Model
from spark_pipeline.weights.node.messages import BadFile, Counter, Problem, Report, Source, WantedFile, emit
from spark_pipeline.weights.node.shards import check_indexes, is_index
from spark_pipeline.weights.node.verify import WINDOW_BYTES, feed, give_back, new_digest

BLOCK_BYTES = 1 << 20
# In a row and without one new byte; any progress starts the count anew. With the pauses between: about a minute.
MAX_FAILURES = 6
MAX_PAUSE_SECONDS = 300.0
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


def download(model: Model, source: Source) -> Report:
    """Fetch every file that is absent, several at once; each is digested while it comes and named when it is right.

    Raises:
        Problem: 'gated', 'vanished', 'hub', 'certificate', 'bytes', 'model' or 'space'. Parts stay for the next run.
    """
    by_path = {file.path: file for file in model.files}
    before = model.survey()
    model.marker.unlink(missing_ok=True)
    absent = sorted((by_path[file.path] for file in before.absent), key=lambda file: -file.size_bytes)
    with Counter() as counter:
        fetcher = _Fetcher(model, source, counter)
        # That a revision lacks what its index names is said before the first of many gigabytes.
        fetcher.fetch_all([file for file in absent if is_index(file)])
        check_indexes(model)
        fetcher.fetch_all([file for file in absent if not is_index(file)])
    after = model.survey(set_aside=fetcher.set_aside)
    return replace(after, hashed_files=len(absent), downloaded_bytes=counter.bytes)


class _Fetcher:
    def __init__(self, model: Model, source: Source, counter: Counter) -> None:
        self._model = model
        self._source = source
        self._counter = counter
        self._opener = urllib.request.build_opener(_TokenStaysHome)
        self.stopped = threading.Event()
        self.set_aside: list[BadFile] = []

    def fetch_all(self, files: Sequence[WantedFile]) -> None:
        """Several at once, in this order; the first failure ends all of them."""
        with ThreadPoolExecutor(self._source.files_at_once) as pool:
            futures = [pool.submit(self.fetch, file) for file in files]
            done, pending = wait(futures, return_when=FIRST_EXCEPTION)
            if pending:
                self.stopped.set()  # the others end at their next block
            pool.shutdown(cancel_futures=True)
        for future in done:
            future.result()

    def fetch(self, file: WantedFile) -> None:
        """Until the file has its name. Wrong bytes are fetched again once: twice wrong is the source's word."""
        for is_last in (False, True):
            with _Part(self._model.part(file), file) as part:
                wrong = self._complete(part)
            if not wrong:
                if part.is_complete:
                    self._model.put_in_place(file, part.path)
                return
            self.set_aside.append(wrong)
            self._model.set_aside(file, part.path)
            if is_last:
                raise Problem(
                    "bytes",
                    f"{file.path} came wrong twice; the last one is set aside",
                    f"expected {wrong.expected}, got {wrong.actual}",
                )
            emit("note", text=f"{file.path}: expected {wrong.expected}, got {wrong.actual}; fetching it again")

    def _complete(self, part: _Part) -> BadFile | None:
        """Request after request until the part has its length; what is wrong with it then, if anything."""
        failures = 0
        while not part.is_complete and not self.stopped.is_set():
            size_before = part.size_bytes
            try:
                self._request(part)
            except _WrongSizeError as error:
                return BadFile(part.file.path, f"{part.file.size_bytes} bytes", str(error))
            except _TransientError as error:
                failures = 0 if part.size_bytes > size_before else failures + 1
                if failures >= MAX_FAILURES:
                    raise Problem("hub", f"{part.file.path} does not come", str(error)) from error
                pause = error.retry_after_seconds or (2.0**failures if failures else 0.1)
                emit("note", text=f"{part.file.path}: {error}; again in {pause:.3g} s from byte {part.size_bytes}")
                self.stopped.wait(pause)
        actual = part.digest.hexdigest()
        if not part.is_complete or actual == part.file.digest:
            return None
        return BadFile(part.file.path, f"{part.file.algorithm} {part.file.digest}", f"{part.file.algorithm} {actual}")

    def _request(self, part: _Part) -> None:
        """One GET for what is missing. Returns when the connection gave all it had to give."""
        url = f"{self._source.base_url}/{urllib.parse.quote(part.file.path)}"
        request = urllib.request.Request(url, headers={"User-Agent": "spark_pipeline"})  # noqa: S310 (http or https)
        if self._source.token:
            request.add_header("Authorization", f"Bearer {self._source.token}")
        if part.size_bytes:
            request.add_header("Range", f"bytes={part.size_bytes}-")
        try:
            with self._opener.open(request, timeout=self._source.stall_seconds) as answer:
                _agree_on_range(part, answer)
                while not part.is_complete and not self.stopped.is_set():
                    if not (block := answer.read1(min(BLOCK_BYTES, part.file.size_bytes - part.size_bytes))):
                        raise _TransientError("the connection ended early")
                    part.append(block)
                    self._counter.add(len(block))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416:
                    part.restart()
                raise _judge(part.file, error, request.host) from error
        except TimeoutError as error:
            raise _TransientError(f"no byte for {self._source.stall_seconds:.0f} s") from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise Problem("certificate", f"{request.host} shows no valid certificate", str(reason)) from error
            raise _TransientError(str(reason) or type(reason).__name__) from error


class _Part:
    """A file on its way: what is there of it, and the digest of just that."""

    def __init__(self, path: Path, file: WantedFile) -> None:
        self.path = path
        self.file = file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._stream = path.open("r+b", buffering=0)
        self.digest: Any = new_digest(file)
        self.size_bytes = os.fstat(self._stream.fileno()).st_size
        self._unsynced = 0
        if self.size_bytes > file.size_bytes:
            self.restart()
        feed(self._stream, self.digest)

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._stream.fileno())
        give_back(self._stream)
        self._stream.close()

    @property
    def is_complete(self) -> bool:
        return self.size_bytes == self.file.size_bytes

    def append(self, block: bytes) -> None:
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            raise Problem("space", f"{self.file.path} cannot be written", str(error)) from error
        self.digest.update(block)
        self.size_bytes += len(block)
        self._unsynced += len(block)
        if self._unsynced >= WINDOW_BYTES:
            self._unsynced = 0
            os.fdatasync(self._stream.fileno())
            give_back(self._stream)

    def restart(self) -> None:
        self._stream.truncate(0)
        self._stream.seek(0)
        self.digest = new_digest(self.file)
        self.size_bytes = 0


class _TransientError(Exception):
    """Worth another try."""

    def __init__(self, what: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(what)
        self.retry_after_seconds = retry_after_seconds


class _WrongSizeError(Exception):
    """The source has a file of another length under this name; says which."""


class _TokenStaysHome(urllib.request.HTTPRedirectHandler):
    """A hub redirects to a CDN with a signed address: the token is none of the CDN's business."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected and (redirected.type, redirected.host) != (req.type, req.host):
            redirected.remove_header("Authorization")
        return redirected


def _agree_on_range(part: _Part, answer: Any) -> None:
    """Make the part begin where the answer does. A server that ignores Range sends all: the file starts again."""
    wanted = part.file.size_bytes
    if answer.status == 206:
        match = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if not match or int(match[1]) != part.size_bytes:
            part.restart()
            raise _TransientError(f"asked for a range, got {answer.headers.get('Content-Range')}")
        total = int(match[2])
    else:
        part.restart()
        total = int(answer.headers.get("Content-Length", wanted))
    if total != wanted:
        raise _WrongSizeError(f"{total} bytes")


def _judge(file: WantedFile, error: urllib.error.HTTPError, asked_host: str) -> Exception:
    """What a refusal means. Addresses are left out: a CDN's carries a signature."""
    words = error.headers.get("X-Error-Message") or error.reason
    observed = f"HTTP {error.code} {words}"
    answered_elsewhere = urllib.parse.urlsplit(error.url).netloc != asked_host
    if error.code in (401, 403) and not answered_elsewhere:
        return Problem("gated", f"the hub refuses {file.path}", observed)
    if error.code in (404, 410) and not answered_elsewhere:
        return Problem("vanished", f"the hub has no {file.path} any more", observed)
    # From elsewhere 403 means a signature that ran out; the hub makes a new one with the next request.
    if answered_elsewhere or error.code in (408, 416, 429) or error.code >= 500:
        return _TransientError(observed, _retry_after(error.headers.get("Retry-After", "")))
    return Problem("hub", f"the hub refuses {file.path}", observed)


def _retry_after(value: str) -> float | None:
    """Seconds, given as such or as a date; never more than MAX_PAUSE_SECONDS."""
    if value.strip().isdigit():
        return min(float(value), MAX_PAUSE_SECONDS)
    try:
        at = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return min(max(at.timestamp() - time.time(), 1.0), MAX_PAUSE_SECONDS)
