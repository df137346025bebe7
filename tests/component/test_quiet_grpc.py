"""A connection that fails is told by rankmem alone: gRPC's own lines stay off the user's terminal."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

ASKS: str = """
import os, sys
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import RankmemError
assert os.environ.get("GRPC_VERBOSITY") == (sys.argv[2] or None), "the environment is as it was"
try:
    RemoteQueries(sys.argv[1], Credentials(tls_ca="public")).aggregator_state()
except RankmemError as exc:
    print(exc)
"""


def answer_in_plain_text(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(1024)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("level", ["", "INFO"])
def test_a_handshake_that_fails_writes_no_line_of_grpcs_own_unless_it_was_asked_for(level: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer_in_plain_text, args=(listener,), daemon=True).start()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
        done = subprocess.run(
            [sys.executable, "-c", ASKS, f"127.0.0.1:{listener.getsockname()[1]}", level],
            env=environment | ({"GRPC_VERBOSITY": level} if level else {}),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        listener.shutdown(socket.SHUT_RDWR)
    assert "it speaks plain text: leave out --tls-ca" in done.stdout
    assert ("Handshake failed" in done.stderr) is bool(level)
