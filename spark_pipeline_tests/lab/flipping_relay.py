"""A switch that spoils bytes: it stands in a node's network, between a server there and those who ask it over HTTP."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_CLONE_NEWNET = 0x40000000  # <linux/sched.h>
_SO_ORIGINAL_DST = 80  # <linux/netfilter_ipv4.h>: where a redirected connection wanted to go
_BLOCK_BYTES = 64 * 1024


@dataclass
class FlippingRelay:
    """Hands on what it gets, but for one byte of one file.

    Args:
        path: of the file whose answers are spoiled: byte `offset` of what the answer carries.
        times: so many answers.
        flipped: how many were spoiled so far.
        port: where it listens; a redirected connection goes on to where it wanted to go.
    """

    path: str
    times: int
    offset: int = 100_000
    flipped: int = 0
    port: int = field(default=0, init=False)

    async def serve(self, ready: threading.Event, ended: asyncio.Event) -> None:
        async with await asyncio.start_server(self._hand_on, "0.0.0.0", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await ended.wait()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wanted = writer.get_extra_info("socket").getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        address, port = socket.inet_ntoa(wanted[4:8]), int.from_bytes(wanted[2:4], "big")
        there_reader, there_writer = await asyncio.open_connection(address, port)
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # either side has no more to say
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                there_writer.write(request)
                answer = await there_reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                await self._hand_on_body(there_reader, writer, answer, spoil=self._is_spoiled(request))
        for stream in (writer, there_writer):
            stream.close()

    def _is_spoiled(self, request: bytes) -> bool:
        is_it = request.startswith(f"GET /{self.path} ".encode()) and self.flipped < self.times
        self.flipped += is_it
        return is_it

    async def _hand_on_body(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes, *, spoil: bool
    ) -> None:
        match = re.search(rb"(?i)content-length: *(\d+)", answer)
        done, length = 0, int(match[1]) if match else 0
        while done < length:
            block = bytearray(await reader.read(min(_BLOCK_BYTES, length - done)))
            if not block:
                raise ConnectionError
            if spoil and done <= self.offset < done + len(block):
                block[self.offset - done] ^= 1
            writer.write(block)
            await writer.drain()
            done += len(block)


@contextmanager
def relay_in(network: Path, relay: FlippingRelay) -> Iterator[FlippingRelay]:
    """Run it in another network namespace: sockets belong to the one that their thread was in."""
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    def work() -> None:
        with network.open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(network))
        loop.run_until_complete(relay.serve(ready, ended))

    thread = threading.Thread(target=work, name="relay", daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield relay
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
