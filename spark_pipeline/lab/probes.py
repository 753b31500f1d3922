"""Does it answer? Cheap enough to be asked on every `status`."""

from __future__ import annotations

import http.client
import json
import socket

from spark_pipeline.lab.processes import ProcessId


def ssh_greets(host: str) -> bool:
    """Whether an sshd sends its greeting."""
    try:
        with socket.create_connection((host, 22), timeout=2) as connection:
            return connection.recv(8) == b"SSH-2.0-"
    except OSError:
        return False


class _EngineConnection(http.client.HTTPConnection):
    """HTTP over the engine's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=3)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def engine_version(init: ProcessId) -> str | None:
    """The version of a node's engine, None while it does not answer. Its socket is seen through /proc."""
    connection = _EngineConnection(f"/proc/{init.pid}/root/run/docker.sock")
    try:
        connection.request("GET", "/version")
        return str(json.load(connection.getresponse())["Version"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()
