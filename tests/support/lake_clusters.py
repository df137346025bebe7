"""Clusters that answer over a lake: Ray's, which this process joins, and a Spark Connect server, Sail."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import pytest

from rankmem_aggregator.lake.engine import Engine
from rankmem_aggregator.lake.engines import open_engine
from rankmem_protos.errors import RankmemError
from ray_cluster import START_S, NotStartedError, ray_cluster, reason_to_skip, wait_for_workers

NO_RAY: Final = reason_to_skip()
NO_SPARK: Final = (
    None
    if importlib.util.find_spec("pysail") and importlib.util.find_spec("pyspark")
    else "no Spark Connect server: pysail and pyspark-client are not installed"
)
needs_ray = pytest.mark.skipif(NO_RAY is not None, reason=str(NO_RAY))
needs_spark = pytest.mark.skipif(NO_SPARK is not None, reason=str(NO_SPARK))


@contextlib.contextmanager
def sail(port: int = 0) -> Iterator[str]:
    """A Spark Connect server on loopback, with one process that runs all: its address for an engine."""
    with socket.create_server(("127.0.0.1", port)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "pysail", "spark", "server", "--ip", "127.0.0.1", "--port", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + START_S
        while time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def joined_cluster() -> Iterator[str]:
    """A Ray cluster to which this process is connected; other engines use the connection, too: its address.

    A machine on which Ray does not come up is no finding, unless RANKMEM_CLUSTERS_REQUIRED is set.
    """
    with contextlib.ExitStack() as opened:
        try:
            address, token = opened.enter_context(ray_cluster())
            patch = opened.enter_context(pytest.MonkeyPatch.context())
            for name, value in token.items():
                patch.setenv(name, value)
            opened.enter_context(contextlib.closing(_connected(address)))
            wait_for_workers()
        except (NotStartedError, RankmemError) as exc:
            if os.environ.get("RANKMEM_CLUSTERS_REQUIRED"):
                raise
            pytest.skip(f"Ray does not start on this machine: {str(exc)[-300:]}")
        yield address


def _connected(address: str) -> Engine:
    """The engine, as soon as its cluster is up."""
    until = time.monotonic() + START_S
    while True:
        try:
            engine = open_engine(address)
            assert engine.workers
            return engine
        except RankmemError:
            if time.monotonic() > until:
                raise
