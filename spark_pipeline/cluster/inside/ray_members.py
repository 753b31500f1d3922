"""Runs inside the head's container, on the image's Python: who has joined Ray.

Arguments: address of Ray, number of nodes to wait for, seconds to wait at most, mark of the result line.
Prints one line: the mark, then a JSON list of {address, hostname, accelerators}.
"""

import json
import socket
import sys
import time

import ray  # pyright: ignore[reportMissingImports] - the image's

address, wanted, patience_seconds, mark = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
deadline = time.monotonic() + patience_seconds


def connect():
    """The head's own `ray start` runs at the same time: until it answers, a refusal says nothing."""
    host, port = address.rsplit(":", 1)
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2).close()
            return ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        except OSError:  # Ray's ConnectionError is one
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


connect()
while True:
    alive = [node for node in ray.nodes() if node["Alive"]]
    if len(alive) >= wanted or time.monotonic() > deadline:
        break
    time.sleep(0.3)
print(
    mark
    + json.dumps(
        [
            {
                "address": node["NodeManagerAddress"],
                "hostname": node["NodeManagerHostname"],
                "accelerators": node["Resources"].get("GPU", 0.0),
            }
            for node in alive
        ]
    ),
    flush=True,
)
