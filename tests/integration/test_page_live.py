"""A running session as its streams tell it: one question for all who watch, nothing missed, nothing hung."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from constructed import SESSION, RankLog, empty_database
from page_growing import Growing
from page_server import PageClient, served_page
from rankmem_aggregator.page import live
from rankmem_aggregator.query.local import LocalQueries

SECOND = 1_000_000_000


class Watching(threading.Thread):
    """A stream that is read in a thread until it is closed."""

    def __init__(self, client: PageClient, last_id: str = "") -> None:
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection(client.netloc, timeout=30)
        headers = {"cookie": client.cookie} | ({"last-event-id": last_id} if last_id else {})
        self.connection.request("GET", f"/api/v1/s/{SESSION}/live", None, headers)
        self.socket = self.connection.sock
        self.response = self.connection.getresponse()
        assert self.response.status == 200
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.start()

    def run(self) -> None:
        """Reads."""
        name = ""
        try:
            while line := self.response.readline():
                key, _, value = line.decode().rstrip("\n").partition(": ")
                name = value if key == "event" else name
                if key == "data":
                    self.messages.append((name, json.loads(value)))
        except (OSError, ValueError, AttributeError):
            pass  # closed

    def close(self) -> None:
        """Goes, as a browser does."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.join(10)
        self.response.close()
        self.connection.close()

    def names(self) -> list[str]:
        """Of the messages so far."""
        return [name for name, _ in list(self.messages)]

    def wait_for(self, name: str, limit_s: float = 20.0) -> dict[str, Any]:
        """The latest message of this name."""
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            for found, data in reversed(list(self.messages)):
                if found == name:
                    return data
            time.sleep(0.02)
        raise AssertionError(f"no {name} in {self.messages}")


def log_until(seconds: int, *, ooms: int = 0, ended: bool = False) -> RankLog:
    """A rank that ran so long."""
    log = RankLog(ended=seconds * SECOND if ended else None)
    for i in range(seconds):
        log.alloc(f"b{i}", 1 << 20, at=i * SECOND)
    for i in range(ooms):
        log.oom(1 << 30, at=(seconds + i) * SECOND, device="cpu")
    return log


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Growing:
    return Growing(tmp_path, monkeypatch)


@pytest.fixture
def client(growing: Growing) -> Iterator[PageClient]:
    growing.store(log_until(5))
    with served_page(growing.path) as served:
        yield served


def test_what_is_stored_meanwhile_is_told(client: PageClient, growing: Growing) -> None:
    watching = Watching(client)
    first = watching.wait_for("progress")
    assert first["events"] == 5
    assert first["until_ns"] == 4 * SECOND
    assert first["running"] == 1
    growing.store(log_until(8, ooms=1))
    assert watching.wait_for("oom")["size_bytes"] == 1 << 30
    last = watching.wait_for("progress")
    assert last["watermark"] != first["watermark"]
    assert last["events"] >= 8
    growing.store(log_until(9, ooms=1, ended=True))
    watching.wait_for("end")
    assert watching.wait_for("rank")["state"] != "running"
    assert watching.names().count("oom") == 1
    assert watching.names().count("end") == 1
    watching.close()


def test_a_stream_that_was_lost_is_told_what_failed_meanwhile(client: PageClient, growing: Growing) -> None:
    watching = Watching(client)
    seen = watching.wait_for("progress")["watermark"]
    watching.close()
    growing.store(log_until(9, ooms=3))
    again = Watching(client, last_id=seen)
    again.wait_for("oom")
    again.wait_for("progress")
    assert again.names().count("oom") == 3
    new = Watching(client)  # whoever asks for the first time finds them in the answers
    new.wait_for("progress")
    assert "oom" not in new.names()
    nonsense = Watching(client, last_id="9" * 40 + "-x")
    nonsense.wait_for("progress")
    for each in (again, new, nonsense):
        each.close()


def test_a_failure_that_was_told_is_not_told_again_to_who_comes_back(
    client: PageClient, growing: Growing
) -> None:
    growing.store(log_until(6, ooms=2))
    watching = Watching(client)
    seen = watching.wait_for("progress")["watermark"]
    watching.close()
    again = Watching(client, last_id=seen)
    again.wait_for("progress")
    assert "oom" not in again.names()
    again.close()


def test_the_time_from_which_on_something_is_new_is_told(client: PageClient, growing: Growing) -> None:
    """No earlier than the newest event that was known, less what threads may be out of order."""
    watching = Watching(client)
    assert watching.wait_for("progress")["changed_ns"] is None, "all of it is new to who comes"
    growing.store(log_until(8))
    ends_s = time.monotonic() + 20
    while watching.wait_for("progress")["events"] < 8:
        assert time.monotonic() < ends_s
        time.sleep(0.02)
    assert watching.wait_for("progress")["changed_ns"] == 4 * SECOND - live.UNORDERED_NS
    watching.close()


def test_fifty_streams_ask_once_a_second(client: PageClient, growing: Growing) -> None:
    streams = []
    for number in range(50):
        if number % 5 == 0:
            client.let_in()
        streams.append(Watching(client))
    for stream in streams:
        stream.wait_for("progress")
    growing.texts.clear()
    counts = [len(stream.names()) for stream in streams]
    began_s = time.monotonic()
    time.sleep(4)
    lasted_s = time.monotonic() - began_s
    assert len(growing.texts) <= lasted_s + 2, growing.texts
    assert all(len(stream.names()) >= count + 2 for stream, count in zip(streams, counts, strict=True))
    for stream in streams:
        stream.close()


def test_a_database_that_fails_is_told_and_comes_back(
    client: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching(client)
    watching.wait_for("progress")
    with monkeypatch.context() as broken:

        def failing(queries: LocalQueries, text: str, parameters: Any = None) -> Any:
            raise duckdb.Error("a defect")

        broken.setattr(LocalQueries, "sql", failing)
        assert watching.wait_for("lost")["code"] == "internal"
    count = watching.names().count("progress")
    ends_s = time.monotonic() + 15
    while watching.names().count("progress") == count:
        assert time.monotonic() < ends_s, watching.messages
        time.sleep(0.05)
    watching.close()


def test_a_session_that_was_pruned_ends_its_stream(
    client: PageClient, growing: Growing, tmp_path: Path
) -> None:
    watching = Watching(client)
    watching.wait_for("progress")
    empty_database(str(tmp_path / "1.duckdb")).close()
    growing._newest = LocalQueries(tmp_path / "1.duckdb")
    assert watching.wait_for("lost")["code"] == "not_found"
    watching.join(20)
    watching.close()
    assert not watching.is_alive()
    for route in ("job", "live", "heat?from=0&to=9"):
        assert client.request("GET", f"/api/v1/s/{SESSION}/{route}").status == 404


def test_streams_end_with_the_page(growing: Growing) -> None:
    growing.store(log_until(3))
    with served_page(growing.path) as served:
        watching = Watching(served)
        watching.wait_for("progress")
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 4
    watching.join(10)
    watching.close()
    assert not watching.is_alive()
