"""Runs inside every rank's container: the ranks meet at the head's rendezvous port before the engine does.

Arguments: head's address, port, number of ranks, own rank, own address, mark of the result line.
Rank 0 listens; each other rank connects from its own fabric address, sends its host name padded to 64 KiB (more than
any jumbo frame, so that an MTU that differs along the way shows), and waits for the head's word.
Rank 0 prints one line: the mark, then a JSON list of {address, hostname, accelerators}.
"""

import json
import socket
import sys
import time

HEAD, PORT, WORLD, RANK, OWN, MARK = (
    sys.argv[1],
    int(sys.argv[2]),
    int(sys.argv[3]),
    int(sys.argv[4]),
    sys.argv[5],
    sys.argv[6],
)
PATIENCE_SECONDS = 30.0
PAYLOAD_BYTES = 65536


def receive(connection, count):
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            break
        data += chunk
    return data


def listen():
    members = [{"address": OWN, "hostname": socket.gethostname(), "accelerators": 1}]
    with socket.create_server((HEAD, PORT)) as server:
        server.settimeout(PATIENCE_SECONDS)
        for _ in range(WORLD - 1):
            try:
                connection, peer = server.accept()
            except TimeoutError:
                break
            with connection:
                connection.settimeout(PATIENCE_SECONDS)
                data = receive(connection, PAYLOAD_BYTES)
                if len(data) == PAYLOAD_BYTES:
                    connection.sendall(b"ok")
                    members.append({"address": peer[0], "hostname": data.decode().strip(), "accelerators": 1})
    print(MARK + json.dumps(members), flush=True)


def connect():
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with socket.create_connection((HEAD, PORT), timeout=5, source_address=(OWN, 0)) as connection:
                connection.settimeout(10)
                connection.sendall(socket.gethostname().encode().ljust(PAYLOAD_BYTES))
                if receive(connection, 2) != b"ok":
                    raise OSError("connected, but the bytes did not arrive")
                return
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{error}")
            time.sleep(0.2)


if WORLD > 1:
    listen() if RANK == 0 else connect()
else:
    print(MARK + json.dumps([{"address": OWN, "hostname": socket.gethostname(), "accelerators": 1}]), flush=True)
