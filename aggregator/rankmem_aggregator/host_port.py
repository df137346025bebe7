"""``HOST:PORT``: split, and judged by who can reach it. Pure functions; no name is resolved."""

from __future__ import annotations

import ipaddress

from rankmem_protos.errors import Code, RankmemError


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        RankmemError: INVALID if it is not one.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise RankmemError(
            Code.INVALID, f"{text!r} is not an address", "write HOST:PORT, such as 127.0.0.1:7077"
        )
    return host.strip("[]"), int(port)


def plain_address(host: str) -> str:
    """An address in its one usual form, a name in lower case.

    A socket for IPv6 and IPv4 shows a caller by IPv4 as ``::ffff:192.0.2.1``, one of its own link with the
    interface's name: both are the address without that.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower()
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback(host: str) -> bool:
    """Whether only this host can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(plain_address(host)).is_loopback
    except ValueError:
        return False


def is_every_address(host: str) -> bool:
    """Whether binding it takes calls at any address of this host, ``127.0.0.1`` among them."""
    try:
        return ipaddress.ip_address(plain_address(host)).is_unspecified
    except ValueError:
        return False
