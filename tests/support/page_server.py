"""A page served in this process, and who asks it: a program with the browser's cookie.

Stage: tests. In: a database file, or the address of an aggregator. Out: answers as Arrow tables, refusals as
``RankmemError`` with the code and hint that came over HTTP. Loopback, a free port.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from rankmem_aggregator import connect
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.page.serving import PageConfig, PageServer
from rankmem_protos.errors import Code, RankmemError

POST_HEADERS: Final = {"sec-fetch-site": "same-origin", "content-type": "application/json"}
"""Those that the page's own requests have."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body of a refusal."""
        return dict(json.loads(self.body))


@dataclass(slots=True)
class PageClient:
    """Asks a served page."""

    server: PageServer
    cookie: str = ""

    @property
    def netloc(self) -> str:
        """``host:port``."""
        return urlsplit(self.server.address).netloc

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own, with nothing added but the cookie."""
        connection = http.client.HTTPConnection(self.netloc, timeout=60)
        sent = {"cookie": self.cookie} if self.cookie else {}
        try:
            connection.request(method, path, body or None, {**sent, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def let_in(self) -> None:
        """Shows a code as the page does, and keeps the cookie."""
        body = json.dumps({"code": self.server.door.new_code()}).encode()
        reply = self.request(
            "POST", "/code", body, {"sec-fetch-site": "same-origin", "content-type": "application/json"}
        )
        assert reply.status == 204, reply.body
        self.cookie = reply.headers["set-cookie"].partition(";")[0]

    def ask(self, path: str, **parameters: Any) -> pa.Table:
        """The answer of a route below ``/api/v1``; ``from_`` and ``to`` are from and to.

        Raises:
            RankmemError: as the page refused.
        """
        given = {name.rstrip("_"): value for name, value in parameters.items() if value is not None}
        query = f"?{urlencode(given)}" if given else ""
        reply = self.request("GET", f"/api/v1/{quote(path)}{query}")
        if reply.status != 200:
            told = reply.json()
            raise RankmemError(Code(told["code"]), told["message"], told["hint"])
        with pa.ipc.open_stream(pa.py_buffer(reply.body)) as reader:
            return reader.read_all()

    def facts(self, path: str, **parameters: Any) -> dict[str, Any]:
        """The facts of that answer."""
        return facts_of(self.ask(path, **parameters))


@contextlib.contextmanager
def served_page(target: str | Path, config: PageConfig | None = None) -> Iterator[PageClient]:
    """A page over the target, with a client that has been let in."""
    server = PageServer(config or PageConfig(), lambda: connect(target))
    thread = threading.Thread(target=server.run, name="page under test", daemon=True)
    thread.start()
    client = PageClient(server)
    try:
        client.let_in()
        yield client
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive(), "the page did not end"
