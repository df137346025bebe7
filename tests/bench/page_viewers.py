"""Viewers of a live session: a page over an aggregator, and tabs that ask it again and again.

A child process: ``page_viewers.py ADDRESS VIEWERS SESSION`` prints "ready" once every viewer has had an
answer, and asks until its standard input is closed; then it prints, as JSON, how many answers there were and
what they cost. The viewers are a process of their own, each with one connection, which it keeps as a browser
does: what they cost themselves is told apart from what the page costs.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import IO, Final
from urllib.parse import urlsplit

from harness import say

from page_server import served_page
from rankmem_protos.errors import RankmemError

EVERY_S: Final = 1.0
"""As the page does: the live stream names a new state once a second, and panels ask again."""
PATHS: Final = ("job", "heat?from=0&to=60000000000&device_type=cpu")


def main() -> None:
    address, viewers, session = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    say(f"{viewers} viewers of {address}")
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    with served_page(address) as page:
        netloc = urlsplit(page.server.address).netloc
        requests = [_request(netloc, page.cookie, f"/api/v1/s/{session}/{path}") for path in PATHS]
        asking = processes.Process(target=_ask, args=(there, netloc, requests, viewers))
        asking.start()
        here.recv()
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        print("ready", flush=True)
        sys.stdin.read()
        page_cpu_s, seconds = time.process_time() - began_cpu_s, time.monotonic() - began_s
        here.send(None)
        answers, viewers_cpu_s = here.recv()
        asking.join()
    shares = {"page_cores": page_cpu_s / seconds, "viewers_cores": viewers_cpu_s / seconds}
    print(json.dumps({"answers": answers, "seconds": seconds, **shares}), flush=True)


def _request(netloc: str, cookie: str, path: str) -> bytes:
    lines = (f"GET {path} HTTP/1.1", f"host: {netloc}", f"cookie: {cookie}", "accept-encoding: gzip", "", "")
    return "\r\n".join(lines).encode()


def _ask(told: Connection, netloc: str, requests: Sequence[bytes], viewers: int) -> None:
    """The viewers' process, from its begin until it is told to end."""
    counts, over, begun = [0] * viewers, threading.Event(), threading.Semaphore(0)

    def view(number: int) -> None:
        connection: IO[bytes] | None = None
        tried = False
        while not over.wait(EVERY_S if tried else number / viewers):
            tried = True
            try:
                if connection is None:
                    connection = _connected(netloc)
                for request in requests:
                    connection.write(request)
                    connection.flush()
                    counts[number] += _read(connection)
            except (
                OSError
            ):  # a page with too much to do refuses or cuts; the viewer comes back a second later
                connection = None
            begun.release()

    threads = [threading.Thread(target=view, args=(number,), daemon=True) for number in range(viewers)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begun.acquire()
    began_s = time.process_time()
    told.send(None)
    told.recv()
    told.send((sum(counts), time.process_time() - began_s))
    over.set()
    for thread in threads:
        thread.join(10)


def _connected(netloc: str) -> IO[bytes]:
    host, _, port = netloc.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60).makefile("rwb")


def _read(connection: IO[bytes]) -> int:
    """Reads an answer to its end; 1 where it is one, 0 for a refusal."""
    status = connection.readline()
    length = None
    while (line := connection.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if length is None:
        raise ConnectionError(f"no whole answer: {status!r}")
    connection.read(length)
    return int(status.startswith(b"HTTP/1.1 200"))


if __name__ == "__main__":
    try:
        main()
    except RankmemError as exc:
        sys.exit(f"Error: {exc.message}")
