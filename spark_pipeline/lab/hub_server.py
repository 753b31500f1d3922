"""A hub that huggingface_hub 2.4 takes for the real one, on a directory of plain files (hub_store.py).

    python -m spark_pipeline.lab.hub_server --host 127.0.0.1 --port 8008 --root DIR
    HF_ENDPOINT=http://127.0.0.1:8008 hf download lab/tiny

It answers what the client asks: model_info, tree, paths-info, refs, HEAD and GET (with Range) of files. It never
offers xet, so files come over plain HTTP. What goes wrong on demand is in hub_faults.py. Each request leaves a line
in ROOT/access.jsonl (time_s, method, path, range, status, sent_bytes), so that a test can say what was fetched.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from spark_pipeline.lab.hub_api import describe_file, describe_model, describe_refs, describe_tree
from spark_pipeline.lab.hub_body import whole
from spark_pipeline.lab.hub_faults import Fault, FaultDesk
from spark_pipeline.lab.hub_store import Revision, read_refs, resolve, revisions

ACCESS_LOG = "access.jsonl"
_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<verb>revision|tree|paths-info|refs)(?:/(?P<rest>.+))?)?")
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_BLOCK_BYTES = 64 * 1024


class HubServer(ThreadingHTTPServer):
    """The listening socket plus what all requests share: the root, the faults and the access log."""

    daemon_threads = True

    def __init__(self, host: str, port: int, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.faults = FaultDesk(root)
        self._log_lock = threading.Lock()
        super().__init__((host, port), _Handler)

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT must be."""
        return f"http://{self.server_address[0]}:{self.server_address[1]}"

    def record(self, **fields: object) -> None:
        """Append one line to the access log."""
        line = json.dumps({"time_s": round(time.time(), 3), **fields})
        with self._log_lock, (self.root / ACCESS_LOG).open("a") as stream:
            stream.write(line + "\n")


class _Refusal(Exception):
    """An answer other than the one asked for, as the hub words it."""

    def __init__(self, status: int, message: str, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer  # pyright: ignore[reportIncompatibleVariableOverride]
    _status = 0
    _sent_bytes = 0
    _is_recorded = False

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Silence on the terminal: the access log has it, with more."""

    def _answer(self) -> None:
        self._status, self._sent_bytes, self._is_recorded = 0, 0, False
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._route(body)
        except _Refusal as refusal:
            self._send_json({"error": str(refusal)}, refusal.status, refusal.headers)
        except ValueError as error:
            self._send_json({"error": f"faults.json or the request is not valid: {error}"}, 500)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self._record()

    def _record(self, about_to_send_bytes: int = 0) -> None:
        if self._is_recorded:
            return
        self._is_recorded = True
        self.server.record(
            method=self.command,
            path=self.path,
            range=self.headers.get("Range"),
            status=self._status,
            sent_bytes=self._sent_bytes + about_to_send_bytes,
        )

    def _route(self, body: bytes) -> None:
        url = urlsplit(self.path)
        if url.path == "/":
            return self._send_json({"ok": True})
        if file := _FILE.fullmatch(url.path):
            return self._send_file(file["repo"], unquote(file["revision"]), unquote(file["path"]))
        match = _API.fullmatch(url.path)
        if match is None:
            # /api/agent-harnesses is among these: huggingface_hub asks it first, and 404 is what it expects.
            raise _Refusal(404, "Not found", "EntryNotFound")
        repo, verb, query = match["repo"], match["verb"], parse_qs(url.query)
        name, _, prefix = (match["rest"] or "main").partition("/")
        revision = self._revision(repo, unquote(name))
        if verb == "refs":
            return self._send_json(describe_refs(read_refs(self.server.root, repo)))
        if verb == "tree":
            recursive = query.get("recursive", ["false"])[0].lower() == "true"
            return self._send_json(describe_tree(revision.files(), unquote(prefix), recursive))
        if verb == "paths-info":
            wanted = _wanted_paths(body, self.headers.get_content_type())
            return self._send_json([describe_file(file) for file in revision.files() if file.path in wanted])
        is_gated = "gated" in self.server.faults.faults_for(repo, "", counts=False)
        return self._send_json(describe_model(revision, with_blobs="blobs" in query, is_gated=is_gated))

    def _revision(self, repo: str, name: str) -> Revision:
        revision = resolve(self.server.root, repo, name)
        if revision is None and not revisions(self.server.root, repo):
            raise _Refusal(404, "Repository not found", "RepoNotFound")
        if revision is None:
            raise _Refusal(404, f"Invalid rev id: {name}", "RevisionNotFound")
        return revision

    def _send_file(self, repo: str, revision_name: str, path: str) -> None:
        is_get = self.command == "GET"
        faults = self.server.faults.faults_for(repo, path, counts=is_get)
        if "unavailable" in faults:
            fault = faults["unavailable"]
            headers = {"Retry-After": str(fault.retry_after_s)}
            raise _Refusal(fault.status, HTTPStatus(fault.status).phrase, headers=headers)
        if "gated" in faults:
            self._refuse_unless_allowed(faults["gated"], repo)
        revision = self._revision(repo, revision_name)
        file = next((file for file in revision.files() if file.path == path), None)
        if file is None:
            raise _Refusal(404, f"Entry not found: {path}", "EntryNotFound", {"X-Repo-Commit": revision.commit})
        headers = {"X-Repo-Commit": revision.commit, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if file.is_lfs:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size_bytes)}
        if not is_get:
            self._respond(200, {**headers, "Content-Length": str(file.size_bytes)})
            return
        body = whole(file.location, file.size_bytes, faults)
        wanted = None if "ignore_range" in faults else parse_range(self.headers.get("Range"), body.size_bytes)
        if wanted is not None:
            headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{body.size_bytes}"
            body = replace(body, part=wanted)
        headers["Content-Length"] = str(len(body.part))
        ending = faults.get("cut") or faults.get("stall")
        if ending and ending.after_bytes < len(body.part):
            body = replace(body, part=body.part[: ending.after_bytes])
            self.close_connection = True
        else:
            ending = None
        rate = faults["slow"].bytes_per_s if "slow" in faults else None
        # A slow connection trickles ten times a second: a client's watchdog sees progress, only little of it.
        blocks = body.blocks(_BLOCK_BYTES if rate is None else max(1, rate // 10))
        self._respond(200 if wanted is None else 206, headers, blocks, len(body.part), bytes_per_s=rate)
        if ending and ending.kind == "stall":
            self.rfile.read(1)  # returns when the client hangs up: it has nothing else to say

    def _refuse_unless_allowed(self, gate: Fault, repo: str) -> None:
        sent = self.headers.get("Authorization", "")
        if not sent:
            raise _Refusal(401, f"Access to model {repo} is restricted. You must be authenticated.", "GatedRepo")
        if not gate.token or sent != f"Bearer {gate.token}":
            raise _Refusal(403, f"Access to model {repo} is restricted and you are not authorized.", "GatedRepo")

    def _send_json(self, answer: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(answer).encode()
        common = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        blocks = () if self.command == "HEAD" else (body,)
        self._respond(status, {**common, **(headers or {})}, blocks, sum(map(len, blocks)))

    def _respond(
        self,
        status: int,
        headers: Mapping[str, str],
        blocks: Iterable[bytes] = (),
        total_bytes: int = 0,
        *,
        bytes_per_s: int | None = None,
    ) -> None:
        self._status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        # The access log gets its line before the last bytes go out: who has the whole answer finds its line there.
        if not total_bytes:
            self._record()
        self.end_headers()
        for block in blocks:
            if bytes_per_s is not None:
                time.sleep(len(block) / bytes_per_s)
            if self._sent_bytes + len(block) == total_bytes:
                self._record(about_to_send_bytes=len(block))
            self.wfile.write(block)
            self._sent_bytes += len(block)


def parse_range(header: str | None, size_bytes: int) -> range | None:
    """The part of a file that a Range header asks for; None when it asks for the whole file.

    Raises:
        ValueError: not one single range of bytes, or one that lies outside the file.
    """
    if header is None:
        return None
    match = _RANGE.fullmatch(header.strip())
    if match is None or match[1] == match[2] == "":
        raise ValueError(f"Range: {header}")
    if not match[1]:
        return range(max(0, size_bytes - int(match[2])), size_bytes)
    start = int(match[1])
    if start >= size_bytes:
        raise ValueError(f"Range: {header} of {size_bytes} bytes")
    return range(start, min(size_bytes, int(match[2]) + 1) if match[2] else size_bytes)


def _wanted_paths(body: bytes, content_type: str) -> set[str]:
    """Paths of a paths-info request: the client sends a form, JSON is accepted too."""
    if content_type == "application/json":
        return set(json.loads(body)["paths"])
    return set(parse_qs(body.decode())["paths"])


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="A hub for huggingface_hub on plain files.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8008)
    parser.add_argument("--root", type=Path, required=True, help="directory with the repositories")
    arguments = parser.parse_args()
    with HubServer(arguments.host, arguments.port, arguments.root) as server:
        print(f"hub on {server.endpoint}, repositories in {arguments.root}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
