"""Fetching files over HTTP so that nothing is fetched twice and nothing wrong gets a name.

Why not the hub's own client on the node: it would have to be installed there, checks no sha256 over plain HTTP and
starts a file again from byte 0 when its process ended (huggingface_hub issues #3643, #4196).
"""

from __future__ import annotations

import http.client
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace

from spark_pipeline.weights.node.answers import MisfitError, TransientError, WrongSizeError, begins_at, judge, opener
from spark_pipeline.weights.node.layout import Model
from spark_pipeline.weights.node.messages import BadFile, Counter, Problem, Report, Source, WantedFile, emit
from spark_pipeline.weights.node.part import Part
from spark_pipeline.weights.node.shards import check_indexes, is_index

BLOCK_BYTES = 1 << 20
# In a row and without one byte further than ever before. With the pauses between, each twice the last: about a minute.
MAX_FAILURES = 6
FIRST_PAUSE_SECONDS = 2.0
PAUSE_AFTER_PROGRESS_SECONDS = 0.1


def download(model: Model, source: Source) -> Report:
    """Fetch every file that is absent, several at once; each is digested while it comes and named when it is right.

    Raises:
        Problem: 'gated', 'vanished', 'hub', 'certificate', 'bytes', 'model' or 'space'. Parts stay for the next run.
    """
    by_path = {file.path: file for file in model.files}
    before = model.survey()
    if before.absent or before.bad:  # a second run, at the same time, may have found nothing left to do
        model.marker.unlink(missing_ok=True)
    absent = sorted((by_path[file.path] for file in before.absent), key=lambda file: -file.size_bytes)
    with model.proofs.gathered(), Counter() as counter:
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
        self._opener = opener(direct=source.direct)
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
            with Part(self._model.part(file), file) as part:
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

    def _complete(self, part: Part) -> BadFile | None:
        """Request after request until the part has its length; what is wrong with it then, if anything."""
        failures, furthest = 0, part.size_bytes
        last: TransientError | None = None
        while not part.is_complete and not self.stopped.is_set():
            try:
                self._request(part)
            except TransientError as error:
                failures = 0 if part.size_bytes > furthest else failures + 1
                furthest = max(furthest, part.size_bytes)
                repeats, last = type(error) is type(last), error
                if repeats and isinstance(error, WrongSizeError):
                    wanted = f"expected {part.file.size_bytes} bytes"
                    raise Problem("bytes", f"{part.file.path} came wrong twice", f"{wanted}, got {error}") from error
                if failures >= MAX_FAILURES:
                    raise Problem("hub", f"{part.file.path} does not come", str(error)) from error
                if repeats and isinstance(error, MisfitError):
                    part.restart()
                pause = FIRST_PAUSE_SECONDS * 2 ** (failures - 1) if failures else PAUSE_AFTER_PROGRESS_SECONDS
                pause = error.retry_after_seconds or pause
                emit("note", text=f"{part.file.path}: {error}; again in {pause:.3g} s from byte {part.size_bytes}")
                self.stopped.wait(pause)
        actual = part.digest.hexdigest()
        if not part.is_complete or actual == part.file.digest:
            return None
        return BadFile(part.file.path, f"{part.file.algorithm} {part.file.digest}", f"{part.file.algorithm} {actual}")

    def _request(self, part: Part) -> None:
        """One GET for what is missing. Returns when the connection gave all it had to give."""
        url = f"{self._source.base_url}/{urllib.parse.quote(part.file.path)}"
        request = urllib.request.Request(url, headers={"User-Agent": "spark_pipeline"})  # noqa: S310 (http or https)
        if self._source.token:
            request.add_header("Authorization", f"Bearer {self._source.token}")
        if part.size_bytes:
            request.add_header("Range", f"bytes={part.size_bytes}-")
        try:
            with self._opener.open(request, timeout=self._source.stall_seconds) as answer:
                if begins_at(answer, part.file, part.size_bytes) != part.size_bytes:
                    part.restart()
                while not part.is_complete and not self.stopped.is_set():
                    if not (block := answer.read1(min(BLOCK_BYTES, part.file.size_bytes - part.size_bytes))):
                        raise TransientError("the connection ended early")
                    part.append(block)
                    self._counter.add(len(block))
        except urllib.error.HTTPError as error:
            with error:
                raise judge(part.file, error, self._source) from error
        except TimeoutError as error:
            raise TransientError(f"no byte for {self._source.stall_seconds:.0f} s") from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError):
                host = urllib.parse.urlsplit(url).netloc  # behind a proxy, the request's is the proxy's
                raise Problem("certificate", f"{host} shows no valid certificate", str(reason)) from error
            raise TransientError(str(reason) or type(reason).__name__) from error
