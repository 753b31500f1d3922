"""A node that is reached by ssh."""

from __future__ import annotations

import threading
from collections.abc import Callable

import paramiko

from spark_pipeline.errors import MachineError, UnreachableError
from spark_pipeline.fleet.login import STEP_SECONDS
from spark_pipeline.fleet.shell import ShellHost

_PIECE_BYTES = 64 * 1024
# sshd's MaxSessions is 10 by default; two stay free for what is urgent: the lease, and ending commands.
_SESSIONS = 8


class SshHost(ShellHost):
    """Runs commands over one connection, made when it is first needed and made again when it broke. Thread-safe.

    Args:
        name: the node's name in the fleet.
        connect: gives a logged-in transport.
    """

    def __init__(self, name: str, connect: Callable[[], paramiko.Transport]) -> None:
        super().__init__(name)
        self._connect = connect
        self._transport: paramiko.Transport | None = None
        self._lock = threading.Lock()
        self._sessions = threading.BoundedSemaphore(_SESSIONS)

    def transport(self) -> paramiko.Transport:
        """The live connection.

        Raises:
            UnreachableError, HostKeyError, LoginRefusedError
        """
        with self._lock:
            if self._transport is None or not self._transport.is_active():
                self._transport = self._connect()
            return self._transport

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            if self._transport is not None:
                self._transport.close()
            self._transport = None

    def _start(self, text: str, *, urgent: bool = False) -> SshProcess:
        transport = self.transport()
        if not urgent:
            self._sessions.acquire()
        release = (lambda: None) if urgent else self._sessions.release
        try:
            return SshProcess(self._channel(transport, text), release)
        except BaseException:
            release()
            raise

    def _channel(self, transport: paramiko.Transport, text: str) -> paramiko.Channel:
        try:
            channel = transport.open_session(timeout=STEP_SECONDS)
            channel.exec_command(text)
        except paramiko.ChannelException as error:
            raise MachineError(
                "the ssh server starts no further command",
                node=self.name,
                observed=error.text,
                remedy="set MaxSessions to at least 10 in the node's /etc/ssh/sshd_config",
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise UnreachableError(
                "the connection broke",
                node=self.name,
                observed=str(error) or "the node hung up",
                remedy="see whether the node is up, then run the same again",
            ) from error
        return channel


class SshProcess:
    """A started command, see execution.Process."""

    def __init__(self, channel: paramiko.Channel, release: Callable[[], None]) -> None:
        self._channel = channel
        self._release = release

    def read_stdout(self) -> bytes:
        return self._channel.recv(_PIECE_BYTES)

    def read_stderr(self) -> bytes:
        return self._channel.recv_stderr(_PIECE_BYTES)

    def write(self, data: bytes) -> None:
        try:
            # In pieces: paramiko copies all that is still to come with each 32 kB that it sends, 48 s for 75 MB.
            for start in range(0, len(data), _PIECE_BYTES):
                self._channel.sendall(data[start : start + _PIECE_BYTES])
        except (OSError, EOFError, paramiko.SSHException):
            return  # it reads no further: its status says why

    def close_stdin(self) -> None:
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            return

    def status(self, timeout: float) -> int | None:
        if not self._channel.status_event.wait(timeout):
            return None
        status = self._channel.exit_status
        if status < 0:
            raise ConnectionError("the node, or the network, ended it")
        return status

    def close(self) -> None:
        self._channel.close()
        self._release()
