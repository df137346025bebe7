"""A proxy in front of a real object store that does it harm when told to: fails, delays, cuts, overwrites.

Stage: tests. In: requests of S3 clients, passed on as they are, so that signatures hold; out: the store's
answers, or what the fault makes of them.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from pyarrow.fs import S3FileSystem

Fault = Literal["fails", "forgets", "slow", "breaks off", "short", "careless"]
"""fails: 500, nothing is done. forgets: it is done, and the answer is 500. slow: later. breaks off: the
connection ends amid the body. short: half of the body, as if it were all. careless: a PUT that is not to
overwrite does so."""
SLOW_S: Final = 0.2
_OF_READING: Final = frozenset({"breaks off", "short"})
_OF_CONNECTION: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_cut: bool = False
    """The connection ends amid the body."""


class FaultyStore:
    """What the proxy does now. Any thread.

    Args:
        behind: host and port of the store.
        files: the store, for what the proxy writes itself.
    """

    def __init__(self, behind: str, files: S3FileSystem) -> None:
        self._behind, self._files = behind, files
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._fault: Fault | None = None
        self._every, self._part, self._num_seen = 1, "", 0
        self.num_met = 0
        """Requests that met a fault."""

    @contextmanager
    def faulty(self, fault: Fault, *, every: int = 1, part: str = "") -> Iterator[None]:
        """Meanwhile requests meet a fault, at least one; afterwards none does.

        Args:
            fault: which.
            every: so many requests one does.
            part: of the path of those that may.
        """
        with self._lock:
            self._fault, self._every, self._part = fault, every, part
            self._num_seen = self.num_met = 0
        try:
            yield
            assert self.num_met, f"no request met the fault {fault!r}"
        finally:
            self._fault = None

    def answer(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> _Answer:
        """The answer to a request."""
        fault = self._met(method, path, headers)
        if fault == "fails":
            return _Answer(500, [], b"")
        if fault == "slow":
            self._never.wait(SLOW_S)
        found = self._asked(method, path, headers, body)
        if fault == "forgets":
            return _Answer(500, [], b"")
        if fault == "short":
            return _Answer(found.status, found.headers, found.body[: len(found.body) // 2])
        if fault == "careless" and found.status in (409, 412):
            with self._files.open_output_stream(unquote(urlsplit(path).path).lstrip("/")) as out:
                out.write(body)
            return _Answer(200, [("ETag", '"overwritten"')], b"")
        return replace(found, is_cut=fault == "breaks off")

    def _met(self, method: str, path: str, headers: list[tuple[str, str]]) -> Fault | None:
        with self._lock:
            may = self._fault is not None and self._part in path
            may &= method == "GET" or self._fault not in _OF_READING
            may &= self._fault != "careless" or any(name.lower() == "if-none-match" for name, _ in headers)
            self._num_seen += may
            if not may or self._num_seen % self._every:
                return None
            self.num_met += 1
            return self._fault

    def _asked(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> _Answer:
        connection = http.client.HTTPConnection(self._behind, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            return _Answer(reply.status, reply.getheaders(), reply.read())
        finally:
            connection.close()


@contextmanager
def faulty_store(behind: str, files: S3FileSystem) -> Iterator[tuple[str, FaultyStore]]:
    """The proxy's URL, and what it does.

    Args:
        behind: host and port of the store.
        files: the store.
    """
    store = FaultyStore(behind, files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = store.answer(self.command, self.path, self.headers.items(), body)
            length = dict(found.headers).get("Content-Length") if self.command == "HEAD" else None
            self.send_response(found.status)
            for name, value in found.headers:
                if name.lower() not in _OF_CONNECTION:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(found.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.body[: len(found.body) // 2] if found.is_cut else found.body)
            self.close_connection |= found.is_cut

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

        def log_message(self, *given: Any) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", store
        server.shutdown()
        thread.join()
