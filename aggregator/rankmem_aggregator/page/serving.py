"""``rankmem page``: the page's process, from its options to its end.

Stage: page, main thread. Binds the port itself, so that the address is known before anything is served. The
first signal ends the streams and lets answers that are under way finish; the second ends the process at
once.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import uvicorn

from rankmem_aggregator.host_port import is_every_address
from rankmem_aggregator.page.app import Page, page_app
from rankmem_aggregator.page.config import BACKLOG, PageConfig, bind
from rankmem_aggregator.page.connections import HEAD_BYTES_MAX, IDLE_S, Connections, limited
from rankmem_aggregator.page.door import KEY_BYTES, Door
from rankmem_aggregator.page.pool import Pool
from rankmem_aggregator.page.second_chance import SecondChances
from rankmem_aggregator.page.tls import server_context
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.server.tokens import Right, Tokens

__all__ = ["PageConfig", "PageServer"]

DRAIN_S: Final = 5
"""For answers that are under way, at the first signal."""


class PageServer:
    """A bound page; :meth:`run` serves it in this thread.

    Args:
        config: of the page.
        open_queries: opens a reader of the target.
        bound: a socket that listens already; None: one is bound.
        key: signs the cookies; None: a new one, so that browsers have to come by a new link.
    """

    def __init__(
        self,
        config: PageConfig,
        open_queries: Callable[[], Queries],
        *,
        bound: socket.socket | None = None,
        key: bytes | None = None,
    ) -> None:
        config.check()
        context = _tls(config)
        tokens = Tokens({Right.QUERY: config.query_token_file})
        chances = SecondChances()
        self._pool = Pool(lambda: chances.to(open_queries()))
        try:
            self._socket = bind(config.listen) if bound is None else bound
        except BaseException:
            self._pool.close()
            raise
        self._port: int = self._socket.getsockname()[1]
        self._host = config.host
        self.door = Door(
            port=self._port,
            names=config.known_names(),
            tokens=tokens,
            secure=context is not None,
            any_address=is_every_address(config.host),
            key=key or secrets.token_bytes(KEY_BYTES),
        )
        self.connections = Connections()
        self.page = Page(self._pool, self.door)
        options: dict[str, Any] = {"ssl_context_factory": lambda config, default: context} if context else {}
        self._server = _Server(
            uvicorn.Config(
                page_app(self.page),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                loop="asyncio",
                http=limited(self.connections),
                server_header=False,
                date_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                backlog=BACKLOG,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=DRAIN_S,
                **options,
            ),
            self.page,
        )
        # Its messages are of single requests: whoever sends nonsense would fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    @property
    def address(self) -> str:
        """``http://host:port``, as a browser opens it."""
        scheme = "https" if self.door.secure else "http"
        host = self._host
        if is_every_address(host):
            host = "::1" if ":" in host else "127.0.0.1"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"

    def link(self) -> str:
        """The address with a code that lets one browser in."""
        return f"{self.address}/#code={self.door.new_code()}"

    def run(self) -> None:
        """Serves until a signal, or :meth:`stop` of another thread."""
        keep_what_is_loaded()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.page.close()
            self._socket.close()

    def stop(self) -> None:
        """Has :meth:`run` end. Any thread."""
        self._server.should_exit = True


def keep_what_is_loaded() -> None:
    """Has the garbage collector pass over what is loaded by now: 60 ms of every fourth flame graph."""
    gc.collect()
    gc.freeze()


class _Server(uvicorn.Server):
    """Ends streams before it waits for answers; its signals are ours."""

    def __init__(self, config: uvicorn.Config, page: Page) -> None:
        super().__init__(config)
        self._page = page

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what would not end by itself, then the rest."""
        self._page.live.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM drains, the second ends the process; neither is raised again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._signalled) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + number)
        self.should_exit = True


def _tls(config: PageConfig) -> ssl.SSLContext | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return server_context(config.tls_cert, config.tls_key)
