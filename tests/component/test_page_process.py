"""The page's process: its link, its signals, and its life beside an aggregator that restarts it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from constructed import empty_database
from main_job import RANKMEM, environment
from page_server import POST_HEADERS
from rankmem_aggregator.server.certs import make
from waiting import until

LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/#code=([\w-]+)")


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of rankmem, ended at the end."""
    with subprocess.Popen(
        (*RANKMEM, *arguments),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def link_in(stream: IO[str] | None) -> tuple[int, str]:
    """Port and code of the link that a command prints."""
    assert stream is not None
    for line in stream:
        if found := LINK.search(line):
            return int(found[1]), found[2]
    raise AssertionError("no link was printed")


def asked(port: int, path: str, cookie: str = "", body: bytes | None = None) -> http.client.HTTPResponse:
    """A response of the page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"cookie": cookie, **(POST_HEADERS if body is not None else {})}
    connection.request("GET" if body is None else "POST", path, body, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def let_in(port: int, code: str) -> str:
    """The cookie for a code."""
    response = asked(port, "/code", body=json.dumps({"code": code}).encode())
    assert response.status == 204
    return str(response.headers["set-cookie"]).partition(";")[0]


def pid_of_page(process: subprocess.Popen[str]) -> int:
    """Of the child of ``rankmem serve`` that serves the page."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        children += (task / "children").read_text().split()
    for child in children:
        with contextlib.suppress(OSError):
            if b"page.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return 0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "mem.duckdb"
    empty_database(str(path)).close()
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_the_page_with_its_streams(database: Path, number: signal.Signals) -> None:
    with started(database.parent, "page", "--db", str(database)) as process:
        port, code = link_in(process.stdout)
        cookie = let_in(port, code)
        assert asked(port, "/api/v1/sessions", cookie).status == 200
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        assert code not in said


def test_a_page_of_what_is_no_database_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "no.duckdb").write_bytes(b"this is a text" * 1000)
    done = subprocess.run(
        (*RANKMEM, "page", "--db", "no.duckdb"), cwd=tmp_path, env=environment(tmp_path), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Try: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--listen", "0.0.0.0:0"), "TLS"),
        (("--listen", "127.0.0.1:99999"), "port"),
        (("--listen", "nonsense"), "HOST:PORT"),
        (("--page-tls-cert", "none.pem"), "go together"),
        (("--page-tls-cert", "none.pem", "--page-tls-key", "none.key"), "none.pem"),
        (("--query-token-file", "none"), "none"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    database: Path, arguments: tuple[str, ...], word: str
) -> None:
    done = subprocess.run(
        (*RANKMEM, "page", "--db", str(database), *arguments), cwd=database.parent,
        env=environment(database.parent), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert word in done.stderr
    assert "Try: " in done.stderr


def test_a_page_that_is_killed_comes_back_and_knows_its_browsers(tmp_path: Path) -> None:
    arguments = ("serve", "--db", "mem.duckdb", "--listen", "127.0.0.1:0", "--page", "127.0.0.1:0")
    with started(tmp_path, *arguments) as process:
        port, code = link_in(process.stderr)
        cookie = let_in(port, code)
        assert asked(port, "/api/v1/sessions", cookie).status == 200
        first = pid_of_page(process)
        os.kill(first, signal.SIGKILL)
        # The port is kept: who asks meanwhile waits.
        assert asked(port, "/api/v1/sessions", cookie).status == 200
        second = pid_of_page(process)
        assert second not in (0, first)
        for pid in (first, second, process.pid):
            with contextlib.suppress(OSError):
                seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
                assert code.encode() not in seen
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        until("the page has ended, too", lambda: not Path(f"/proc/{second}").exists())


def test_the_page_ends_with_a_serve_that_is_killed(tmp_path: Path) -> None:
    arguments = ("serve", "--db", "mem.duckdb", "--listen", "127.0.0.1:0", "--page", "127.0.0.1:0")
    with started(tmp_path, *arguments) as process:
        link_in(process.stderr)
        page = pid_of_page(process)
        process.kill()
        process.wait()
        until("the page has ended", lambda: not Path(f"/proc/{page}").exists())


def test_beside_an_aggregator_with_tls_and_tokens_the_page_has_both(tmp_path: Path) -> None:
    make(tmp_path / "certs")
    arguments = (
        "serve", "--db", "mem.duckdb", "--listen", "127.0.0.1:0", "--page", "127.0.0.1:0",
        "--tls-cert", "certs/aggregator.pem", "--tls-key", "certs/aggregator.key",
        "--ingest-token-file", "certs/ingest.token", "--query-token-file", "certs/query.token",
    )  # fmt: skip
    with started(tmp_path, *arguments) as process:
        assert process.stderr is not None
        port = 0
        for line in process.stderr:
            if found := re.search(r"https://127\.0\.0\.1:(\d+)/#code=", line):
                port = int(found[1])
                break
        context = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.pem"))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        token = (tmp_path / "certs" / "query.token").read_text().split()[0]
        connection.request("GET", "/api/v1/sessions", None, {"authorization": f"Bearer {token}"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_page_that_may_not_read_does_not_start(tmp_path: Path) -> None:
    make(tmp_path / "certs")
    done = subprocess.run(
        (*RANKMEM, "serve", "--db", "mem.duckdb", "--page", "127.0.0.1:0", "--ingest-token-file",
         "certs/ingest.token"),
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--query-token-file" in done.stderr
