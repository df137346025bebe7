"""A unit test starts no process, opens no port and loads no torch: one that does is in tests/component."""

from __future__ import annotations

import socket
import sys
from collections.abc import Generator
from typing import Any, Final, Never
from unittest import mock

import pytest

REFUSED: Final = {
    "subprocess.Popen": "starts a process",
    "os.fork": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "socket.bind": "opens a port",
    "socket.connect": "connects to a port",
}
"""Events of :func:`sys.audit`."""
HARMLESS: Final = ("fc-list", "/sbin/ldconfig")
"""Programs: matplotlib lists the machine's fonts, once; a CUDA build of torch looks for a library."""
_runs = False


def refuse(what: str) -> Never:
    """Fails the test that runs; no ``except Exception`` of the product's catches this."""
    pytest.fail(f"a unit test {what}: move it to tests/component")


def _no_server(*_: object, **__: object) -> Never:
    refuse("starts a server")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _runs or (event == "socket.connect" and arguments[0].type == socket.SOCK_DGRAM):
        return  # a datagram socket that connects sends nothing: so a host finds its own address
    if event in ("subprocess.Popen", "os.posix_spawn") and arguments[0] in HARMLESS:
        return
    if event in REFUSED:
        refuse(REFUSED[event])
    if event == "import" and arguments[0] == "torch":
        refuse("imports torch")


sys.addaudithook(_audit)


def _watched() -> Generator[None, object, object]:
    global _runs
    _runs = True
    try:
        with mock.patch("grpc.server", _no_server):
            return (yield)
    finally:
        _runs = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Fixtures as well, of every scope."""
    return (yield from _watched())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """The test itself."""
    return (yield from _watched())
