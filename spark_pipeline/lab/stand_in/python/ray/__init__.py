"""A stand-in for Ray: who is a member, over one TCP port. No tasks, no actors.

The head's `ray start` runs `Membership`; every node keeps one connection to it open, and is dead when that breaks.
"""

import contextlib
import json
import os
import socket
import socketserver
import threading
import uuid
from pathlib import Path

__version__ = "2.53.0+standin"
CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")  # noqa: S108 - where the real one notes it

_address: str | None = None


def init(address: str | None = None, **_: object) -> dict[str, str]:
    """Connect to a running cluster; the stand-in starts none by itself."""
    global _address
    if address in (None, "auto"):
        known = os.environ.get("RAY_ADDRESS") or (CURRENT_CLUSTER.read_text() if CURRENT_CLUSTER.exists() else "")
        if not known:
            raise ConnectionError("Could not find any running Ray instance. Please specify the one to connect to.")
        address = known
    _request(address, {"op": "nodes"})
    _address = address
    return {"address": address, "node_ip_address": address.partition(":")[0]}


def is_initialized() -> bool:
    return _address is not None


def shutdown() -> None:
    global _address
    _address = None


def nodes() -> list[dict]:
    """Members, alive and dead, in the shape of the real ray.nodes()."""
    if _address is None:
        raise RuntimeError("Ray has not been started yet. You can start Ray with 'ray.init()'.")
    return _request(_address, {"op": "nodes"})


def cluster_resources() -> dict[str, float]:
    total: dict[str, float] = {}
    for node in nodes():
        if node["Alive"]:
            for name, amount in node["Resources"].items():
                total[name] = total.get(name, 0.0) + amount
    return total


def describe(address: str, resources: dict[str, float], *, is_head: bool) -> dict:
    """One member as ray.nodes() tells it (read from 2.53.0)."""
    name = uuid.uuid4().hex + uuid.uuid4().hex[:24]
    marks = {f"node:{address}": 1.0, **({"node:__internal_head__": 1.0} if is_head else {})}
    return {
        "NodeID": name,
        "Alive": True,
        "NodeManagerAddress": address,
        "NodeManagerHostname": socket.gethostname(),
        "NodeManagerPort": 0,
        "ObjectManagerPort": 0,
        "ObjectStoreSocketName": "/tmp/ray/session_standin/sockets/plasma_store",  # noqa: S108
        "RayletSocketName": "/tmp/ray/session_standin/sockets/raylet",  # noqa: S108
        "MetricsExportPort": 0,
        "NodeName": address,
        "RuntimeEnvAgentPort": 0,
        "DeathReason": 0,
        "DeathReasonMessage": "",
        "alive": True,
        "Resources": {**resources, **marks},
        "Labels": {"ray.io/node-id": name},
    }


class Membership(socketserver.ThreadingTCPServer):
    """The head's port: JSON lines; "join" holds its connection, "nodes" is one question."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int) -> None:
        self.members: dict[str, dict] = {}
        self.lock = threading.Lock()
        super().__init__((address, port), _MembershipHandler)


class _MembershipHandler(socketserver.StreamRequestHandler):
    server: Membership  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line.strip().startswith(b"{"):
            return  # somebody who only looks whether the port is open
        request = json.loads(line)
        with self.server.lock:
            if request["op"] == "join":
                self.server.members[request["node"]["NodeID"]] = request["node"]
            answer = list(self.server.members.values())
        self.wfile.write(json.dumps(answer).encode() + b"\n")
        if request["op"] == "join":
            with contextlib.suppress(OSError):
                self.rfile.read()
            with self.server.lock:
                self.server.members[request["node"]["NodeID"]] |= {"Alive": False, "alive": False, "DeathReason": 2}


def _request(address: str, request: dict) -> list[dict]:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(connection.makefile().readline())
    except OSError as error:
        raise ConnectionError(f"ray.init() could not connect to {address}: {error}") from error
