"""`ray start`, `ray status`, `ray stop`."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import CURRENT_CLUSTER, Membership, __version__, describe, init, nodes

PIDS = CURRENT_CLUSTER.with_name("standin_pids")
KEEP = "_keep"  # internal: the process that stays


def main() -> int:
    parser = argparse.ArgumentParser(prog="ray", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ray, version {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("start", KEEP):
        start = commands.add_parser(name, allow_abbrev=False)
        start.add_argument("--head", action="store_true")
        start.add_argument("--address")
        start.add_argument("--node-ip-address")
        start.add_argument("--port", type=int, default=6379)
        start.add_argument("--num-cpus", type=float)
        start.add_argument("--num-gpus", type=float, default=0.0)
        start.add_argument("--object-store-memory", type=float, default=2e8)
        start.add_argument("--block", action="store_true")
    commands.add_parser("status").add_argument("--address")
    commands.add_parser("stop")
    arguments, _ = parser.parse_known_args()
    if arguments.command == "status":
        return status(arguments.address)
    if arguments.command == "stop":
        return stop()
    return keep(arguments) if arguments.command == KEEP or arguments.block else start_in_background(arguments)


def start_in_background(arguments: argparse.Namespace) -> int:
    """Without --block the command returns once the node is up, and the node stays."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ray", KEEP, *sys.argv[2:]], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    if "Ray runtime started" not in said:
        return process.wait() or 1
    print(said + f"Next steps\n  To view the status of the cluster, use\n    ray status ({arguments.port})", flush=True)
    return 0


def keep(arguments: argparse.Namespace) -> int:
    """Be a node until the end; a worker ends when its head is gone, as a raylet does."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    own = arguments.node_ip_address or socket.gethostbyname(socket.gethostname())
    address = f"{own}:{arguments.port}" if arguments.head else arguments.address
    if arguments.head:
        threading.Thread(target=Membership(own, arguments.port).serve_forever, daemon=True).start()
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=5)
    except OSError as error:
        print(f"[ray] Failed to connect to GCS at {address}: {error}", file=sys.stderr, flush=True)
        return 1
    CURRENT_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
    CURRENT_CLUSTER.write_text(address)
    with PIDS.open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    print(f"Ray runtime started. Local node IP: {own}", flush=True)
    if not arguments.head and _is_told_to_stay_away():
        threading.Event().wait()
    return _join(connection, arguments, own)


def _join(connection: socket.socket, arguments: argparse.Namespace, own: str) -> int:
    resources = {
        "CPU": float(arguments.num_cpus or os.cpu_count() or 1),
        "memory": 8e9,
        "object_store_memory": arguments.object_store_memory,
        **({"GPU": arguments.num_gpus} if arguments.num_gpus else {}),
    }
    node = describe(own, resources, is_head=arguments.head)
    connection.settimeout(None)
    connection.sendall(json.dumps({"op": "join", "node": node}).encode() + b"\n")
    while connection.recv(65536):
        pass
    print("Some Ray subprocesses exited unexpectedly: raylet (the head is gone)", file=sys.stderr, flush=True)
    return 1


def _is_told_to_stay_away() -> bool:
    from vllm import has_fault

    return has_fault("ray_missing_member")


def status(address: str | None) -> int:
    try:
        init(address)
    except ConnectionError as error:
        print(error, file=sys.stderr)
        return 1
    alive = [node for node in nodes() if node["Alive"]]
    print(f"======== Autoscaler status: {time.strftime('%Y-%m-%d %H:%M:%S')} ========\nActive:")
    for node in alive:
        print(f" 1 node_{node['NodeID']}")
    print("Total Usage:")
    for name in ("CPU", "GPU"):
        print(f" 0.0/{sum(node['Resources'].get(name, 0.0) for node in alive)} {name}")
    return 0


def stop() -> int:
    pids = PIDS.read_text().split() if PIDS.exists() else []
    stopped = 0
    for pid in pids:
        if b"ray" in (Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b""):
            os.kill(int(pid), signal.SIGTERM)
            stopped += 1
    PIDS.unlink(missing_ok=True)
    CURRENT_CLUSTER.unlink(missing_ok=True)
    print(f"Stopped all {stopped} Ray processes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
