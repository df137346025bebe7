"""Asks an aggregator's health service whether it serves: the probe of its container.

Stage: beside the server, in a process of its own. Kubernetes' own probe of a gRPC service speaks no TLS.
``python -m rankmem_aggregator.server.health_probe HOST:PORT [--ca FILE] [--any]`` ends with 0 where it is
SERVING, with ``--any`` where it answers at all, else with 1 and a line that says why. Needs no token.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S: Final = 5.0
"""For connection and answer, on loopback; Kubernetes gives up later."""


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Asks an aggregator's health service whether it serves.")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--ca", type=Path, help="with TLS, and this CA for the aggregator's certificate")
    parser.add_argument("--any", action="store_true", help="any answer will do, also that it cannot store")
    given = parser.parse_args(arguments)
    try:
        with _channel(given.address, given.ca) as channel:
            asked = health_pb2.HealthCheckRequest()
            reply = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=TIMEOUT_S)
    except grpc.RpcError as exc:
        print(f"no answer from {given.address}: {exc.details()}", file=sys.stderr)
        return 1
    if given.any or reply.status == health_pb2.HealthCheckResponse.SERVING:
        return 0
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    print(f"{given.address} is {name}; rankmem status says why", file=sys.stderr)
    return 1


def _channel(address: str, ca: Path | None) -> grpc.Channel:
    if ca is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes()))


if __name__ == "__main__":
    sys.exit(main())
