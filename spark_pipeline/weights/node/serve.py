"""Handing a verified model from one node to others over the fabric.

Plain HTTP with a password that is made for this one copy and travels over standard input only. Ranks talk over the
same fabric in clear anyway, and the receiver checks every byte against the manifest.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from spark_pipeline.weights.node.answers import opener
from spark_pipeline.weights.node.layout import Model
from spark_pipeline.weights.node.messages import Counter, Problem, Report, Source, WantedFile, emit
from spark_pipeline.weights.node.verify import give_back

DONE_PATH = "/.spark_pipeline/done"
MAX_IDLE_SECONDS = 120.0


def serve(model: Model, address: str, password: str, receivers: int) -> Report:
    """Serve the proven files at `address` until all receivers said that they are done, or nothing was sent for long."""
    try:
        server = Server(model, address, password, receivers)
    except OSError as error:
        raise Problem("fabric", f"cannot listen on {address}", error.strerror or str(error)) from error
    with server, Counter() as counter:
        threading.Thread(target=server.serve_forever, name="serve", daemon=True).start()
        emit("serving", port=server.server_address[1])
        while not server.done.wait(1.0) and time.monotonic() - server.last_sign < MAX_IDLE_SECONDS:
            counter.bytes = server.sent_bytes
        server.shutdown()
    return model.survey()


def say_done(source: Source) -> None:
    """The last word about one receiver to `serve`; lost, it ends by itself later."""
    request = urllib.request.Request(source.base_url + DONE_PATH, method="POST")  # noqa: S310 (our own address)
    request.add_header("Authorization", f"Bearer {source.token}")
    with contextlib.suppress(OSError), opener(direct=True).open(request, timeout=5):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: Model, address: str, password: str, receivers: int) -> None:
        self.model = model
        self.files = {file.path: file for file in model.files}
        self.authorization = f"Bearer {password}"
        self.done = threading.Event()
        self._waits_for = receivers
        self._lock = threading.Lock()
        self.last_sign = time.monotonic()
        self.sent_bytes = 0
        super().__init__((address, 0), _Handler)

    def one_is_done(self) -> None:
        with self._lock:
            self._waits_for -= 1
            if self._waits_for <= 0:
                self.done.set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        if not self._is_allowed():
            return
        model = self.server.model
        file = self.server.files.get(urllib.parse.unquote(self.path)[1:])
        if file is None or not _is_proven(model, file):
            self._answer(404)
            return
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        headers = {"Content-Range": f"bytes {start}-{file.size_bytes - 1}/{file.size_bytes}"} if match else {}
        with model.path(file).open("rb", buffering=0) as stream:
            self._answer(206 if match else 200, file.size_bytes - start, headers)
            while sent := os.sendfile(self.connection.fileno(), stream.fileno(), start, 8 << 20):
                start += sent
                self.server.sent_bytes += sent
                self.server.last_sign = time.monotonic()
            give_back(stream)

    def do_POST(self) -> None:
        if self._is_allowed() and self.path == DONE_PATH:
            self._answer(200)
            self.server.one_is_done()

    def _is_allowed(self) -> bool:
        is_allowed = hmac.compare_digest(self.headers.get("Authorization", ""), self.server.authorization)
        if not is_allowed:
            self._answer(403)
        return is_allowed

    def _answer(self, status: int, length: int = 0, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silence: standard output carries events, standard error the last words."""


def _is_proven(model: Model, file: WantedFile) -> bool:
    try:
        return model.proofs.hold(file, os.lstat(model.path(file)))
    except FileNotFoundError:
        return False
