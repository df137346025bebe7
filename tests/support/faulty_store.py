"""A proxy in front of a real object store that does it harm when told to: fails, delays, cuts, overwrites.

Stage: tests. In: requests of S3 clients, passed on as they are, so that signatures hold; out: the store's
answers, or what the fault makes of them. It runs in a process of its own, as this module's program: deltalake
holds Python's lock while it waits for an upload (1.6).
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from seaweed import files_of

Fault = Literal["fails", "forgets", "slow", "breaks off", "short", "careless"]
"""fails: 500, nothing is done. forgets: a PUT is done, and the answer is 500. slow: later. breaks off: the
connection ends amid the body. short: half of the body, as if it were all. careless: a PUT that is not to
overwrite does so."""
SLOW_S: Final = 0.2
_METHODS: Final = {"breaks off": "GET", "short": "GET", "forgets": "PUT", "careless": "PUT"}
"""Of requests that may meet a fault; of other faults all."""
_OF_CONNECTION: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_cut: bool = False
    """The connection ends amid the body."""


class FaultyStore:
    """A proxy that runs.

    Args:
        process: its program.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = self._told()

    @contextmanager
    def faulty(self, fault: Fault, *, every: int = 1, part: str = "") -> Iterator[None]:
        """Meanwhile requests meet a fault, at least one; afterwards none does.

        Args:
            fault: which.
            every: so many requests one does.
            part: of the path of those that may.
        """
        self._tell([fault, every, part])
        try:
            yield
        finally:
            num_met = int(self._tell([None, 1, ""]))
        assert num_met, f"no request met the fault {fault!r}"

    def _tell(self, plan: list[Any]) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def faulty_store(behind: str) -> Iterator[FaultyStore]:
    """A proxy in front of the store at this host and port."""
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, __file__, behind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    ) as process:  # fmt: skip
        try:
            yield FaultyStore(process)
        finally:
            process.kill()


class _Proxy:
    """What is done to requests. Any thread.

    Args:
        behind: host and port of the store.
    """

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._fault: Fault | None = None
        self._every, self._part, self._num_seen, self._num_met = 1, "", 0, 0

    def plan(self, fault: Fault | None, every: int, part: str) -> int:
        """From now on; returns how many requests met the fault before."""
        with self._lock:
            num_met, self._num_seen, self._num_met = self._num_met, 0, 0
            self._fault, self._every, self._part = fault, every, part
        return num_met

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
            with files_of(self._behind).open_output_stream(unquote(urlsplit(path).path).lstrip("/")) as out:
                out.write(body)
            return _Answer(200, [("ETag", '"overwritten"')], b"")
        return replace(found, is_cut=fault == "breaks off")

    def _met(self, method: str, path: str, headers: list[tuple[str, str]]) -> Fault | None:
        with self._lock:
            may = self._fault is not None and self._part in path
            may &= method == _METHODS.get(str(self._fault), method)
            may &= self._fault != "careless" or any(name.lower() == "if-none-match" for name, _ in headers)
            self._num_seen += may
            if not may or self._num_seen % self._every:
                return None
            self._num_met += 1
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


def main(behind: str) -> None:
    """Says its URL; then takes a plan a line, and says how many requests met the one before."""
    proxy = _Proxy(behind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = proxy.answer(self.command, self.path, self.headers.items(), body)
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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    for line in sys.stdin:
        print(proxy.plan(*json.loads(line)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
