"""A bad network on loopback: a TCP proxy that delays, cuts, swallows, doubles or damages what goes through.

It runs in a thread of the test, on its own event loop. What it does with a connection is asked once, by the
connection's number, when it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CHUNK_BYTES: Final = 16_384
DEAF_S: Final = 1.0
"""Long enough to store what has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What happens to one connection. The default: nothing."""

    delay_s: float = 0.0
    """Each piece waits so long, both ways."""
    up_bytes_max: int | None = None
    """After so many bytes from the client both ends are reset, in the middle of whatever they said."""
    deaf_after: int | None = None
    """After so many bytes from the client nothing comes back to it; both ends are reset DEAF_S later. What
    was said is done, and the client never hears of it."""
    swallows_after: int | None = None
    """After so many bytes from the client nothing goes through any more, and nobody is told."""
    up_bits: frozenset[int] = frozenset()
    """Bits of what the client says that arrive the other way round, counted from the connection's first."""
    down_bits: frozenset[int] = frozenset()
    """The same of what the server says."""
    doubled: bool = False
    """All that the client says reaches the server a second time, on a connection of its own."""


class Proxy:
    """Listens on a free port and passes on to another; a context manager."""

    def __init__(self, target_port: int, wire_of: Callable[[int], Wire] = lambda number: Wire()) -> None:
        self.port = 0
        self.wire_of = wire_of
        self.num_connections = 0
        self.num_cut = 0
        self.num_flipped = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        # Nobody listens at the target yet: given its port, the proxy would connect to itself, without end.
        with socket.socket() as held:
            with contextlib.suppress(OSError):
                held.bind(("127.0.0.1", self._target_port))
            self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = self.wire_of(self.num_connections)
        self.num_connections += 1
        try:
            await self._connect(wire, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            _reset(writer)
            self._tasks.discard(task)

    async def _connect(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        sinks = [up_writer]
        is_deaf = asyncio.Event()
        ways = [self._answer(up_reader, writer, wire, is_deaf)]
        if wire.doubled:
            second_reader, second_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            sinks.append(second_writer)
            ways.append(_drain(second_reader))
        ways.append(self._ask(reader, sinks, wire, is_deaf))
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for sink in sinks:
                _reset(sink)

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writers: list[asyncio.StreamWriter],
        wire: Wire,
        is_deaf: asyncio.Event,
    ) -> None:
        """From the client, until it ends or is cut."""
        passed = 0
        while data := await reader.read(CHUNK_BYTES):
            await asyncio.sleep(wire.delay_s)
            if wire.swallows_after is not None and passed >= wire.swallows_after:
                await asyncio.Event().wait()  # for ever
            data = self._damaged(data, passed, wire.up_bits)
            left = len(data) if wire.up_bytes_max is None else wire.up_bytes_max - passed
            for writer in writers:
                with contextlib.suppress(OSError):
                    writer.write(data[:left])
                    await writer.drain()
            passed += len(data)
            if left < len(data):
                self.num_cut += 1
                return
            if wire.deaf_after is not None and passed >= wire.deaf_after and not is_deaf.is_set():
                is_deaf.set()
                self.num_cut += 1
                asyncio.get_running_loop().call_later(DEAF_S, reader.feed_eof)

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        wire: Wire,
        is_deaf: asyncio.Event,
    ) -> None:
        """From the server."""
        passed = 0
        while data := await reader.read(CHUNK_BYTES):
            await asyncio.sleep(wire.delay_s)
            data = self._damaged(data, passed, wire.down_bits)
            passed += len(data)
            if not is_deaf.is_set():
                writer.write(data)
                await writer.drain()

    def _damaged(self, data: bytes, begin: int, bits: frozenset[int]) -> bytes:
        """The piece that begins there, with its share of the flipped bits."""
        mine = [bit - 8 * begin for bit in bits if begin <= bit // 8 < begin + len(data)]
        self.num_flipped += len(mine)
        changed = bytearray(data)
        for bit in mine:
            changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(CHUNK_BYTES):
        pass


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(Exception):
        writer.transport.abort()
