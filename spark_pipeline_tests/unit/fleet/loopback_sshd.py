"""An ssh server on 127.0.0.1, as a process of its own, for what no real sshd does on demand.

    python loopback_sshd.py HOST_KEY AUTHORISED_KEY...      prints its port

It speaks the real protocol (paramiko's server side) and runs commands as sshd does: `sh -c`, a session of their own.
The tests under lab/ use OpenSSH.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import paramiko
from paramiko import common


class Server(paramiko.ServerInterface):
    def __init__(self, authorised: list[str]) -> None:
        self.authorised = authorised
        self.commands: dict[int, bytes] = {}

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = username == "tester" and key.get_base64() in self.authorised
        return common.AUTH_SUCCESSFUL if known else common.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return common.OPEN_SUCCEEDED if kind == "session" else common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=execute, args=(channel, command), daemon=True).start()
        return True


def execute(channel: paramiko.Channel, command: bytes) -> None:
    process = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None

    def feed() -> None:
        try:
            while data := channel.recv(65536):
                while data:
                    data = data[os.write(stdin.fileno(), data) :]
        except OSError:
            pass
        stdin.close()

    def forward(stream: int, send) -> None:
        while data := os.read(stream, 65536):
            try:
                send(data)
            except OSError:
                return

    threading.Thread(target=feed, daemon=True).start()
    readers = [
        threading.Thread(target=forward, args=(stdout.fileno(), channel.sendall)),
        threading.Thread(target=forward, args=(stderr.fileno(), channel.sendall_stderr)),
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    channel.send_exit_status(process.wait())
    channel.close()


def main() -> None:
    host_key = paramiko.PKey.from_path(sys.argv[1])
    authorised = [paramiko.PKey.from_path(path).get_base64() for path in sys.argv[2:]]
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        transport = paramiko.Transport(connection)
        transport.add_server_key(host_key)
        transport.start_server(event=threading.Event(), server=Server(authorised))


if __name__ == "__main__":
    main()
