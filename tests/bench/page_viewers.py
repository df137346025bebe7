"""Viewers of a live session: a page over an aggregator, and tabs that ask it again and again.

A child process: ``page_viewers.py ADDRESS VIEWERS SESSION`` prints "ready" once every viewer has had an
answer, and asks until its standard input is closed; then it prints how many answers there were.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
from typing import Final

from harness import say

from page_server import PageClient, served_page
from rankmem_protos.errors import RankmemError

EVERY_S: Final = 1.0
"""As the page does: the live stream names a new state once a second, and panels ask again."""
PATHS: Final = ("job", "heat?from=0&to=60000000000&device_type=cpu")


def main() -> None:
    address, viewers, session = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    say(f"{viewers} viewers of {address}")
    tried, counts = [0] * viewers, [0] * viewers
    begun = threading.Semaphore(0)
    over = threading.Event()
    with served_page(address) as first:

        def view(number: int) -> None:
            client = PageClient(first.server, first.cookie)
            while not over.wait(EVERY_S if tried[number] else number / viewers):
                tried[number] += 1
                for path in PATHS:
                    # A page with too much to do refuses or cuts; the viewer comes back a second later.
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        client.request("GET", f"/api/v1/s/{session}/{path}")
                        counts[number] += 1
                begun.release()

        threads = [threading.Thread(target=view, args=(number,), daemon=True) for number in range(viewers)]
        for thread in threads:
            thread.start()
        for _ in threads:
            begun.acquire()
        print("ready", flush=True)
        sys.stdin.read()
        over.set()
        for thread in threads:
            thread.join(10)
    print(json.dumps({"answers": sum(counts)}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except RankmemError as exc:
        sys.exit(f"Error: {exc.message}")
