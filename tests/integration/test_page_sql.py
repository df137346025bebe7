"""SQL through the page: a user's own statements, and the statement that each panel gives for its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from constructed import RankLog, empty_database, store_logs
from page_questions import answered, questions
from page_server import PageClient, Reply, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.sql import head_of, view_names, view_text
from rankmem_protos.summary_tables import SUMMARY_TABLES
from rankmem_protos.tables import TABLES

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page_sql") / "job.duckdb"
    logs = []
    for rank in range(3):
        log = RankLog(rank=rank, ended=10 * SECOND, host_uid=f"host-{rank}")
        for i in range(12):
            log.alloc(
                f"b{i}",
                (rank + 1) << 20,
                at=i * SECOND // 4,
                step=i // 4,
                operator="aten::mm",
                device="cuda:0",
            )
        log.oom(1 << 30, at=4 * SECOND, device_free_bytes=1 << 20)
        log.step_ends(2, at=5 * SECOND)
        logs.append(log)
    with empty_database(str(path)) as connection:
        store_logs(connection, logs)
    return path


@pytest.fixture(scope="module")
def client(database: Path) -> Iterator[PageClient]:
    with served_page(database) as served:
        yield served


def post(client: PageClient, body: object, **headers: str) -> Reply:
    sent = {"sec-fetch-site": "same-origin", "content-type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request("POST", "/api/v1/sql", json.dumps(body, ensure_ascii=False).encode(), sent)


def rows(reply: Reply) -> pa.Table:
    assert reply.status == 200, reply.body
    with pa.ipc.open_stream(pa.py_buffer(reply.body)) as reader:
        return reader.read_all()


def test_a_statement_gives_the_rows_of_rankmem_sql(client: PageClient, database: Path) -> None:
    statement = "SELECT rank, device, peak_requested_bytes FROM peak_by_rank ORDER BY rank"
    found = rows(post(client, {"sql": statement}))
    with connect(database) as queries:
        assert found.to_pylist() == queries.sql(statement).to_pylist()
    assert found.num_rows == 3
    assert facts_of(found)["sql"] == statement


def test_more_rows_than_the_limit_are_cut_and_that_is_said(client: PageClient) -> None:
    cut = rows(post(client, {"sql": "SELECT * FROM range(100000)", "limit": 7}))
    assert (cut.num_rows, facts_of(cut)["truncated"]) == (7, True)
    whole = rows(post(client, {"sql": "SELECT * FROM range(7)", "limit": 7}))
    assert (whole.num_rows, facts_of(whole)["truncated"]) == (7, False)
    assert rows(post(client, {"sql": "SELECT * FROM range(100000)"})).num_rows == 10_000
    assert post(client, {"sql": "SELECT 1", "limit": 10_001}).status == 400


def test_values_that_a_browser_would_round_arrive_as_text(client: PageClient) -> None:
    statement = """SELECT 9007199254740993 AS above, 9007199254740992 AS exact, sum(range)::HUGEINT AS total,
        1.25::DECIMAL(6, 2) AS small, [1, 2] AS list, TIMESTAMP '2026-01-02 03:04:05' AS at, NULL AS nothing,
        {'a': 1} AS struct, 'x'::BLOB AS bytes, true AS yes FROM range(4)"""
    (row,) = rows(post(client, {"sql": statement})).to_pylist()
    assert row == {
        "above": "9007199254740993",
        "exact": 9007199254740992,
        "total": 6,
        "small": 1.25,
        "list": "[1, 2]",
        "at": "2026-01-02 03:04:05",
        "nothing": None,
        "struct": "{'a': 1}",
        "bytes": "78",
        "yes": True,
    }


def test_columns_of_one_name_are_told_apart(client: PageClient) -> None:
    found = rows(post(client, {"sql": "SELECT a.range AS x, b.range AS x FROM range(1) a, range(2) b"}))
    assert len(set(found.column_names)) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"sql": "CREATE TABLE mine (a INTEGER)"}, 403),
        ({"sql": "DELETE FROM session"}, 403),
        ({"sql": "SELECT * FROM read_csv('/etc/passwd')"}, 403),
        ({"sql": "COPY (SELECT 1) TO '/tmp/out.csv'"}, 403),
        ({"sql": "SELEC"}, 400),
        ({"sql": ""}, 400),
        ({"sql": "SELECT 1\0"}, 400),
        ({"sql": "-- " + "x" * (128 << 10)}, 400),
        ({"sql": "é" * (65 << 10)}, 400),
        ({"sql": "x" * (300 << 10)}, 413),
        ({"sql": "SELECT 1", "other": "1"}, 400),
        ({"sql": ["SELECT 1"]}, 400),
        ({"sql": None}, 400),
        ([], 400),
        ("SELECT 1", 400),
    ],
)
def test_what_is_no_reading_statement_is_refused(client: PageClient, body: Any, status: int) -> None:
    reply = post(client, body)
    assert reply.status == status, reply.body
    assert reply.json()["hint"]


def test_only_the_page_itself_may_post(client: PageClient) -> None:
    assert post(client, {"sql": "SELECT 1"}, sec_fetch_site="cross-site").status == 403
    assert post(client, {"sql": "SELECT 1"}, sec_fetch_site="same-site").status == 403
    assert post(client, {"sql": "SELECT 1"}, content_type="text/plain").status == 415
    assert client.request("GET", "/api/v1/sql?sql=SELECT%201").status in (404, 405)


def test_the_schema_is_that_of_the_house(client: PageClient) -> None:
    found = client.ask("schema").to_pylist()
    tables = TABLES | SUMMARY_TABLES
    of_tables = {(row["name"], row["column"]) for row in found if row["kind"] == "table"}
    assert of_tables == {(name, column.name) for name, table in tables.items() for column in table.columns}
    assert {row["name"] for row in found if row["kind"] != "table"} >= set(view_names())
    (doc,) = {row["meaning"] for row in found if row["name"] == "peak_by_rank"}
    assert doc == head_of(view_text("peak_by_rank")).question
    for name in ("peak_requested_bytes", "rank", "device"):
        assert ("peak_by_rank", name) in {(row["name"], row["column"]) for row in found}


def test_the_statement_of_every_panel_gives_its_rows(client: PageClient, database: Path) -> None:
    with connect(database) as queries:
        session = queries.session_id()
        asked = list(questions(client, session))
        assert len(asked) >= 5
        for question in asked:
            answer = answered(client, question)
            statements = [part for part in facts_of(answer)["sql"].split(";\n\n") if part.strip()]
            if question.route.path in ("/schema", "/jump") or question.route.path.startswith("/insight/"):
                continue  # it reads no database; it shows no rows; it judges what many statements give
            assert statements, f"{question.path} gives no SQL"
            found = [queries.sql(statement) for statement in statements]
            _is_of(question.path, answer, found)


def _is_of(path: str, answer: pa.Table, found: list[pa.Table]) -> None:
    """The answer's rows stand in what its statements give: texts and bytes as they are."""
    if answer.num_rows:
        assert any(rows.num_rows for rows in found), f"{path}: its SQL gives no rows"
    for name in answer.column_names:
        sources = [rows for rows in found if name in rows.column_names and rows.num_rows]
        if name.endswith("_ns") or not sources or pa.types.is_nested(answer[name].type):
            continue
        if not any(rows.schema.field(name).type == answer.schema.field(name).type for rows in sources):
            continue  # the panel's text of a number, or a part of a whole
        given = {value for rows in sources for value in rows[name].to_pylist()}
        assert set(answer[name].to_pylist()) <= given, f"{path}: {name} has values that its SQL does not give"
