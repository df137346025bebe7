"""``rankmem page``: the page's process, from its options to its end.

Stage: page, main thread. Binds the port itself, so that the address is known before anything is served;
uvicorn serves until the first signal, finishes what it answers and ends; the second signal ends it at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from rankmem_aggregator.host_port import is_every_address, is_loopback, split_address
from rankmem_aggregator.page.app import Page, page_app
from rankmem_aggregator.page.door import Door
from rankmem_aggregator.page.pool import Pool
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.server.tokens import Right, Tokens
from rankmem_protos.errors import Code, RankmemError

LISTEN_PAGE: Final = "127.0.0.1:0"
DRAIN_S: Final = 5
CONNECTIONS_MAX: Final = 512
IDLE_S: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PageConfig:
    """How the page is served."""

    listen: str = LISTEN_PAGE
    """HOST:PORT; port 0 takes a free one."""
    names: tuple[str, ...] = ()
    """Further names by which browsers reach it."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    query_token_file: Path | None = None
    """Tokens of programs, one a line."""

    def check(self) -> None:
        """Raises INVALID for options that would let others in without TLS."""
        host, _ = split_address(self.listen)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise RankmemError(
                Code.INVALID,
                "a certificate and its key go together",
                "give --page-tls-cert and --page-tls-key",
            )
        if not is_loopback(host) and (self.tls_cert is None or self.query_token_file is None):
            raise RankmemError(
                Code.INVALID,
                f"--listen {self.listen} is reached from other hosts, which needs TLS and tokens",
                "give --page-tls-cert, --page-tls-key and --query-token-file; or listen on 127.0.0.1 and "
                "forward the port: ssh -L",
            )


class PageServer:
    """A bound page; :meth:`run` serves it in this thread."""

    def __init__(self, config: PageConfig, open_queries: Callable[[], Queries]) -> None:
        config.check()
        host, port = split_address(config.listen)
        self._pool = Pool(open_queries)
        self._socket = _bind(host, port)
        self._port = self._socket.getsockname()[1]
        self._host = host
        names = {host.strip("[]").lower(), *(name.lower() for name in config.names)}
        if is_loopback(host) or is_every_address(host):
            names |= {"localhost", "127.0.0.1", "::1"}
        self.door = Door(
            port=self._port,
            names=frozenset(names),
            tokens=Tokens({Right.QUERY: config.query_token_file}),
            secure=config.tls_cert is not None,
        )
        options = uvicorn.Config(
            page_app(Page(pool=self._pool, door=self.door)),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            loop="asyncio",
            http="h11",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=DRAIN_S,
            ssl_certfile=config.tls_cert,
            ssl_keyfile=config.tls_key,
        )
        self._server = uvicorn.Server(options)

    @property
    def address(self) -> str:
        """``http://host:port``, as a browser opens it."""
        scheme = "https" if self.door.secure else "http"
        host = "127.0.0.1" if is_every_address(self._host) else self._host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"

    def link(self) -> str:
        """The address with a code that lets one browser in."""
        return f"{self.address}/#code={self.door.new_code()}"

    def run(self) -> None:
        """Serves until a signal, or :meth:`stop` of another thread."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._pool.close()

    def stop(self) -> None:
        """Has :meth:`run` end."""
        self._server.should_exit = True


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(128)
    except OSError as exc:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"cannot listen on {host}:{port}: {exc.strerror}",
            "choose another: --listen HOST:PORT",
        ) from exc
    return bound
