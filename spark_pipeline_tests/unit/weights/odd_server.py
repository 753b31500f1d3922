"""Servers on loopback for what the lab's hub does not do: one that answers as a test says, and a proxy."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


class OddServer:
    """Answers with `act`, and remembers what it was shown."""

    def __init__(self, content: bytes, act: Callable[[Any], None], certificate: Path | None = None) -> None:
        self.content = content
        self.act = act
        self.tokens: list[str] = []
        self.ranges: list[str] = []
        outer = self

        class Handler(_Quiet):
            def do_GET(self) -> None:
                outer.tokens.append(self.headers.get("Authorization", ""))
                outer.ranges.append(self.headers.get("Range", ""))
                self.close_connection = True
                outer.act(self)

        Handler.outer = self  # type: ignore[attr-defined]
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{'https' if certificate else 'http'}://{self.address}"

    def __enter__(self) -> OddServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Proxy:
    """Forwards what it is asked for, and remembers it: absolute addresses, or hosts to be connected with."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        outer = self

        class Handler(_Quiet):
            def do_GET(self) -> None:
                outer.seen.append(self.path)
                self.close_connection = True
                url = urllib.parse.urlsplit(self.path)
                connection = http.client.HTTPConnection(url.netloc)
                path = urllib.parse.urlunsplit(("", "", *url[2:]))
                connection.request(self.command, path, headers={**self.headers, "Connection": "close"})
                answer = connection.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def do_CONNECT(self) -> None:
                outer.seen.append(self.path)
                host, _, port = self.path.rpartition(":")
                with socket.create_connection((host, int(port))) as there, contextlib.suppress(ConnectionError):
                    self.send_response(200)
                    self.end_headers()
                    ways = {self.connection: there, there: self.connection}
                    while block := (ready := select.select(list(ways), [], [])[0][0]).recv(65536):
                        ways[ready].sendall(block)
                self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    __enter__ = OddServer.__enter__
    __exit__ = OddServer.__exit__


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass


def send(handler: Any, until: int | None = None) -> None:
    """The content, or its end that was asked for; the connection breaks at byte `until` of the content."""
    content = handler.outer.content
    start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    names = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
    answer(handler, 206 if start else 200, content[start:until], {"Content-Length": len(content) - start, **names})


def answer(handler: Any, status: int, body: bytes = b"", headers: dict[str, Any] | None = None) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": len(body), **(headers or {})}.items():
        if value is not None:
            handler.send_header(name, str(value))
    handler.end_headers()
    handler.wfile.write(body)


def redirect(handler: Any, to: str, status: int = 302) -> None:
    answer(handler, status, headers={"Location": f"{to}{handler.path}?signature=abc"})


def first(act: Callable[[Any], None], *, times: int = 1, then: Callable[[Any], None] = send) -> Callable[[Any], None]:
    """One way of answering for the first requests, another one afterwards."""
    return lambda handler: (act if len(handler.outer.ranges) <= times else then)(handler)


def self_signed(directory: Path) -> Path:
    """Key and certificate in one file, made with what paramiko brings along."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    today = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = builder.not_valid_before(today - timedelta(1)).not_valid_after(today + timedelta(1)).sign(key, SHA256())
    path = directory / "server.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + signed.public_bytes(Encoding.PEM)
    )
    return path
