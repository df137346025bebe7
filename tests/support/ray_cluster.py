"""A Ray cluster for tests, in a network of its own: a head without CPUs, two workers with one each.

Ray listens on all interfaces, so it gets namespaces (network, processes) in which there is only loopback, and
which end with all that runs in them. As a program, this module is the first process there: it starts Ray,
and passes connections on to Ray's client server from a port of the machine's own loopback, on which only it
listens.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HEAD: Final = "127.0.0.2"  # Ray turns 127.0.0.1 into the address of an outward interface
WORKERS: Final = ("127.0.0.3", "127.0.0.4")
GCS_PORT: Final = 6399
CLIENT_PORT: Final = 10001
START_S: Final = 90
"""For the cluster, and for connecting to it: some seconds on an idle machine."""
_NAMESPACES: Final = ("--net", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL")


class NotStartedError(Exception):
    """Ray did not come up on this machine within START_S."""


def unshare() -> list[str]:
    """The command that begins the namespaces; empty where they are not allowed."""
    for user in ([], ["--map-root-user"]):
        command = ["unshare", *user, *_NAMESPACES]
        with contextlib.suppress(OSError):
            if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                return command
    return []


def reason_to_skip() -> str | None:
    """Why there can be no cluster here."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed: pip install 'rankmem[ray]'"
    if not unshare():
        return "no network namespace for Ray: unshare --net --pid is not allowed here"
    return None


@contextlib.contextmanager
def ray_cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """A running cluster: its address for an engine, and the variables with which clients are let in.

    Raises:
        NotStartedError: with the end of its log.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, **token, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    # Other tests may need the memory, and the cores: 30 s are short for a Python process then.
    environment |= {
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": str(START_S),
    }
    with (
        # Short: the names of its sockets have at most 107 characters.
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
        open(Path(folder, "log"), "wb") as log,
    ):
        process = subprocess.Popen(
            [*unshare(), sys.executable, __file__, folder, str(listener.fileno())],
            env=environment, pass_fds=[listener.fileno()], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if said != b"ready\n":
                raise NotStartedError(Path(folder, "log").read_text(errors="replace")[-4000:])
            yield f"ray://127.0.0.1:{listener.getsockname()[1]}", token
        finally:
            process.communicate(timeout=START_S)  # its standard input ends, and with it all in the namespaces


def _keep(*arguments: str, folder: str) -> None:
    """One machine of the cluster, until the end: again where it dies, or took Ray's 30 s to start."""
    while True:
        subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--block",
             "--disable-usage-stats", f"--temp-dir={folder}", f"--object-store-memory={80 << 20}"],
            stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False,
        )  # fmt: skip


def wait_for_workers() -> None:
    """Returns when both workers are there, as this process sees them, which is connected.

    Raises:
        NotStartedError: they do not come.
    """
    import ray

    until = time.monotonic() + START_S
    while sum(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]) < 2:
        if time.monotonic() > until:
            raise NotStartedError(str(ray.nodes()))
        time.sleep(0.5)


def _wait_for(port: int, until: float) -> None:
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection((HEAD, port), timeout=1).close()
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on {HEAD}:{port} after {START_S} s")


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def _raise_loopback() -> None:
    """``ip link set lo up``."""
    siocgifflags, siocsifflags, iff_up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, siocgifflags, request))[1]
        fcntl.ioctl(any_socket, siocsifflags, struct.pack("16sh14x", b"lo", flags | iff_up))


def _pass_on(listener: socket.socket) -> None:
    while True:
        outer = listener.accept()[0]
        try:
            inner = socket.create_connection((HEAD, CLIENT_PORT))
        except OSError:  # a test has killed the head
            outer.close()
            continue
        for source, target in ((outer, inner), (inner, outer)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


def main(folder: str, listener_fd: int) -> None:
    """Starts the cluster, says ``ready`` and passes connections on, until standard input ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _raise_loopback()
    machines = [
        ("--head", f"--node-ip-address={HEAD}", f"--port={GCS_PORT}", "--num-cpus=0",
         f"--ray-client-server-port={CLIENT_PORT}", "--include-dashboard=false"),
        *((f"--address={HEAD}:{GCS_PORT}", f"--node-ip-address={ip}", "--num-cpus=1") for ip in WORKERS),
    ]  # fmt: skip
    until = time.monotonic() + START_S
    for machine in machines:
        threading.Thread(target=_keep, args=machine, kwargs={"folder": folder}, daemon=True).start()
        _wait_for(CLIENT_PORT, until)  # the head's
    print("ready", flush=True)
    _pass_on(socket.socket(fileno=listener_fd))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
