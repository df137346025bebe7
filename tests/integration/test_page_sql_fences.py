"""Statements that would leave the data are refused through the page as they are without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from page_job import store_job
from page_server import PageClient, served_page
from rankmem_aggregator.server import aggregator as server
from refused_sql import ENDED, REFUSED
from refused_sql_page import confined

SHARED = "SELECT (SELECT count(*) FROM memory_event) AS events, (SELECT count(*) FROM session) AS sessions"
FILE_GROUPS = ("Writing files", "Reading files and the network", "Other databases, extensions, secrets")


@pytest.fixture(scope="module")
def aggregator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Aggregator]:
    with confined(tmp_path_factory.mktemp("fences")) as running:
        yield running


def status_of(client: PageClient, sql: str) -> tuple[int, bytes]:
    body = json.dumps({"sql": sql}, ensure_ascii=False).encode()
    headers = {"sec-fetch-site": "same-origin", "content-type": "application/json"}
    reply = client.request("POST", "/api/v1/sql", body, headers)
    return reply.status, reply.body


def test_every_escape_is_refused_over_an_aggregator(
    aggregator: server.Aggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # both run in this process: their relative paths lead here
    with served_page(aggregator.address) as client:
        before = status_of(client, SHARED)
        assert before[0] == 200
        for sql in (sql for group in REFUSED.values() for sql in group):
            status, body = status_of(client, sql)
            assert status in (400, 403, 413), (status, sql[:200], body[:300])
            assert json.loads(body)["message"]
        assert status_of(client, SHARED)[0] == 200
        assert list(tmp_path.iterdir()) == []


def test_every_escape_from_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, elsewhere = tmp_path / "job.duckdb", tmp_path / "elsewhere"
    elsewhere.mkdir()
    store_job(database)
    bytes_before = database.read_bytes()
    monkeypatch.chdir(elsewhere)
    with served_page(database) as client:
        for sql in (sql for group in FILE_GROUPS for sql in REFUSED[group]):
            status, body = status_of(client, sql)
            text = body.decode("utf-8", "replace")
            assert status in (400, 403) or ("root:" not in text and "HOME" not in text), (sql, text[:200])
            assert "root:x:" not in text, sql
        assert status_of(client, SHARED)[0] == 200
    assert database.read_bytes() == bytes_before
    assert list(elsewhere.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"job.duckdb", "elsewhere"}


def test_a_statement_that_wants_too_much_ends_with_its_limit(aggregator: server.Aggregator) -> None:
    with served_page(aggregator.address) as client:
        for sql, limit in list(ENDED.items())[:3]:
            status, body = status_of(client, sql)
            assert status == 429, (sql, body[:200])
            assert "longer than" in json.loads(body)["message"], limit
        assert status_of(client, SHARED)[0] == 200
