"""Whom an aggregator would serve, and whether it may: addresses, certificates, tokens.

Stage: before the server opens; pure but for the look at what is installed. In: values of the configuration
(see ``config``); out: nothing, or the error with the option, its value and what to give.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from rankmem_aggregator.extras import require_extra
from rankmem_aggregator.host_port import is_loopback, split_address
from rankmem_protos.errors import Code, RankmemError


def check_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> None:
    """A certificate has its key, and clients' certificates are asked for by TLS alone."""
    if (cert is None) != (key is None):
        raise RankmemError(
            Code.INVALID,
            f"a certificate and its key belong together: --tls-cert {cert}, --tls-key {key}",
            "give both; rankmem certs DIR makes them",
        )
    if client_ca is not None and cert is None:
        raise RankmemError(
            Code.INVALID, f"--tls-client-ca {client_ca} needs TLS", "add --tls-cert FILE --tls-key FILE"
        )


def check_listen(listen: str, *, has_tls: bool, has_tokens: bool, insecure: bool) -> None:
    """Off loopback TLS and a token are required, unless nobody minds."""
    host, port = split_address(listen)
    if not 0 <= port <= 65_535:
        raise RankmemError(
            Code.INVALID, f"--listen has port {port}", "use a port from 0 (any free one) to 65535"
        )
    there = {"no TLS": has_tls, "no token": has_tokens}
    missing = " and ".join(what for what, given in there.items() if not given)
    if missing and not insecure and not is_loopback(host):
        raise RankmemError(
            Code.DENIED,
            f"--listen {listen} is not loopback, and this aggregator has {missing}",
            "rankmem certs DIR makes what --tls-cert, --tls-key, --ingest-token-file and "
            "--query-token-file need; or listen on 127.0.0.1 (with an SSH tunnel); or add --insecure: "
            "anybody who reaches the port can then read everything and add data",
        )


def check_metrics(listen: str, *, is_open: bool) -> None:
    """Off loopback only where that was asked for: metrics require no token."""
    host, _ = split_address(listen)
    if not is_loopback(host) and not is_open:
        raise RankmemError(
            Code.DENIED,
            f"--metrics {listen} is not loopback, and metrics require no token",
            "listen on 127.0.0.1; or add --metrics-open: anybody who reaches the port can read them",
        )


def check_otlp(url: str) -> None:
    """The address of a collector, and what is needed to send to it."""
    require_extra("otlp", "--otlp")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RankmemError(
            Code.INVALID,
            f"--otlp is {url!r}, not an address of HTTP",
            "give http://HOST:4318 or https://HOST:4318: the collector's receiver for OTLP over HTTP",
        )


def check_page(listen: str, *, is_closed: bool) -> None:
    """The page reads as its viewers may.

    Args:
        listen: HOST:PORT.
        is_closed: whether tokens are required and none allows reading.
    """
    split_address(listen)
    if is_closed:
        raise RankmemError(
            Code.INVALID,
            f"--page {listen} reads what no token allows here",
            "add --query-token-file FILE: with --ingest-token-file alone, reading is closed to everybody",
        )
