"""How the page is served: one frozen value, checked at once.

Stage: before the page's process serves; also in the parent of ``rankmem serve --page``. Loads no web
framework.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_aggregator.extras import require_extra
from rankmem_aggregator.host_port import is_every_address, is_loopback, plain_address, split_address
from rankmem_protos.credentials import read_private, read_public
from rankmem_protos.errors import Code, RankmemError

LISTEN_PAGE: Final = "127.0.0.1:0"
PORT_MAX: Final = 65_535  # TCP's


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
    """Tokens of programs, one per line."""

    def check(self) -> None:
        """Checks that the page can be served as this says.

        Raises:
            RankmemError: INVALID for what would let others in without TLS, and for files that cannot be used;
                UNSUPPORTED without the extra ``page``.
        """
        require_extra("page", "the web page")
        host, port = split_address(self.listen)
        if not 0 <= port <= PORT_MAX:
            raise RankmemError(
                Code.INVALID,
                f"the page's address {self.listen} has port {port}",
                f"use a port from 0 (any free one) to {PORT_MAX}",
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise RankmemError(
                Code.INVALID,
                "a certificate and its key go together",
                "give --page-tls-cert and --page-tls-key",
            )
        if not is_loopback(host) and (self.tls_cert is None or self.query_token_file is None):
            raise RankmemError(
                Code.INVALID,
                f"the page's address {self.listen} is reached from other hosts, which needs TLS and tokens",
                "give a certificate, its key and --query-token-file (rankmem certs DIR makes them); or "
                "listen on 127.0.0.1 and forward the port: ssh -L",
            )
        if self.tls_cert is not None and self.tls_key is not None:
            read_public(self.tls_cert, "--page-tls-cert")
            read_private(self.tls_key, "--page-tls-key")

    @property
    def host(self) -> str:
        """The part of ``listen`` before the port."""
        return split_address(self.listen)[0]

    def known_names(self) -> frozenset[str]:
        """The names, in their plain form, by which browsers may reach it."""
        names = {plain_address(name.strip("[]")) for name in (self.host, *self.names)}
        if is_loopback(self.host) or is_every_address(self.host):
            names |= {"localhost", "127.0.0.1", "::1"}
        if is_every_address(self.host):
            names.add(socket.gethostname().lower())
        return frozenset(names)


def bind(listen: str) -> socket.socket:
    """A socket that listens at HOST:PORT.

    Raises:
        RankmemError: UNAVAILABLE.
    """
    host, port = split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol by name: only then asyncio switches Nagle's algorithm off, which would hold back the
    # body of each answer until the browser acknowledges its head, 40 ms later.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and is_every_address(host):
            # Whatever the host's own default: every address, IPv4 among them, as for the aggregator's port.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as exc:
        bound.close()
        raise RankmemError(
            Code.UNAVAILABLE,
            f"cannot listen on {listen}: {exc.strerror or exc}",
            "choose another address: HOST:PORT; port 0 takes a free one",
        ) from exc
    return bound


BACKLOG: Final = 256
"""Connections that wait to be accepted."""
