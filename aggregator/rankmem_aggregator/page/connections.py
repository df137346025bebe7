"""Connections of the page's server: how many, how long they may be silent, and how slowly they may read.

Stage: page, in uvicorn's event loop, below every request. A connection without a request under way makes
room for a new one where there are too many: whoever opens a thousand and says nothing keeps nobody out. A
request has to arrive within seconds, and a reader has to take what it asked for.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rankmem_aggregator.host_port import is_loopback
from rankmem_aggregator.page.headers import SECURITY_HEADERS, encoded
from rankmem_aggregator.page.refusal import Refusal, told
from rankmem_protos.errors import Code

CONNECTIONS_MAX: Final = 512
"""At once. One holds some 30 KiB, and a descriptor: the usual limit of a process is 1,024."""
CONNECTIONS_A_CLIENT: Final = 64
"""Of another host. On loopback all users of this host, and all SSH tunnels, are one address."""
HEAD_BYTES_MAX: Final = 16 << 10
"""Of a request line and its headers."""
REQUEST_S: Final = 10.0
"""For a request to arrive, from its first byte, or from the connection's begin."""
IDLE_S: Final = 30
"""Between two requests."""
READ_S: Final = 30.0
"""For a client to take what is written to it at a time (``SLICE_BYTES``): less than 10 KiB/s is cut."""


class Connections:
    """The connections that are open, the longest open first."""

    def __init__(self, most: int = CONNECTIONS_MAX, most_a_client: int = CONNECTIONS_A_CLIENT) -> None:
        self._most, self._most_a_client = most, most_a_client
        self._open: dict[Connection, str] = {}
        self._of_client: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection, client: str) -> bool:
        """Takes a connection; False where there is no room for it even without those that are idle."""
        most = self._most if client == "" or is_loopback(client) else self._most_a_client
        if self._of_client[client] >= most and not self._make_room(client):
            return False
        if len(self._open) >= self._most and not self._make_room(None):
            return False
        self._open[connection] = client
        self._of_client[client] += 1
        return True

    def remove(self, connection: Connection) -> None:
        """Forgets a connection that is closed. Idempotent."""
        client = self._open.pop(connection, None)
        if client is None:
            return
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]

    def _make_room(self, client: str | None) -> bool:
        """Closes the longest open idle connection, of this client or of any."""
        for connection, of_client in self._open.items():
            if (client is None or of_client == client) and not connection.is_busy:
                self.remove(connection)
                connection.abort()
                return True
        return False


class Connection(H11Protocol):
    """A connection with limits; :func:`limited` makes the class that uvicorn takes."""

    open_connections: Connections
    _waits: asyncio.TimerHandle | None = None
    """Ends it if no whole request comes."""
    _writes: asyncio.TimerHandle | None = None
    """Ends it if its client does not read."""

    @property
    def is_busy(self) -> bool:
        """Whether a request of it is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def abort(self) -> None:
        """Closes it at once."""
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(transport)
        if not self.open_connections.admit(self, self.client[0] if self.client else ""):
            self.abort()
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self.open_connections.remove(self)
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # a broken request behind one that is being answered
            self.abort()
            return
        if self.is_busy:
            self._stop_waiting()
        elif self._waits is None:
            self._await_request()

    def on_response_complete(self) -> None:
        """The next request, if any, may come later, and one that has begun to come soon."""
        super().on_response_complete()
        if not self.is_busy and self.conn.trailing_data[0]:
            self._await_request()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        super().pause_writing()
        if self._writes is None:
            self._writes = self.loop.call_later(READ_S, self.abort)

    def resume_writing(self) -> None:
        """It has read."""
        if self._writes is not None:
            self._writes.cancel()
            self._writes = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP request, and closes."""
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        status = hint if hint in (400, 405, 414, 431, 501, 505) else 400
        error = Refusal(status, Code.INVALID, "the page does not understand this request", "see docs/page.md")
        if status == 431:
            error = Refusal(
                431,
                Code.INVALID,
                f"the request's head has more than {HEAD_BYTES_MAX:,} bytes",
                "ask for less",
            )
        headers = [
            (b"content-type", b"application/json"),
            (b"connection", b"close"),
            *encoded(SECURITY_HEADERS),
        ]
        try:
            parts = (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=json.dumps(told(error)).encode()),
                h11.EndOfMessage(),
            )
            for part in parts:
                self.transport.write(self.conn.send(part) or b"")
        except h11.LocalProtocolError:
            pass  # within an answer: the connection's end says it
        self.transport.close()

    def _await_request(self) -> None:
        self._stop_waiting()
        self._waits = self.loop.call_later(REQUEST_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _give_up(self) -> None:
        self._waits = None
        if not self.is_busy:
            self.abort()


def limited(connections: Connections) -> type[Connection]:
    """The class of connections that count as these."""
    return type("LimitedConnection", (Connection,), {"open_connections": connections})
