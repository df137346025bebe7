"""What the page saves: the rows of an answer in other programs' formats, and files for other tools."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import json_schema
from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, empty_database, store_logs, store_rows
from kept_answers import answers_of, content_of
from page_job import HOSTILE, hostile, store_job
from page_questions import answered, questions
from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.page.answers.sessions import SESSIONS_MAX
from rankmem_aggregator.page.exported import speedscope_of
from rankmem_aggregator.page.reading import facts_of, of_database
from rankmem_protos.errors import Code, RankmemError


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page_exports") / "job.duckdb"
    store_job(path, hostile())
    return path


@pytest.fixture(scope="module")
def client(database: Path) -> Iterator[PageClient]:
    with served_page(database) as served:
        yield served


def saved(client: PageClient, kind: str, path: str, query: str = "") -> bytes:
    reply = client.request("GET", f"/api/v1/export/{kind}/{path}{query}")
    assert reply.status == 200, reply.body
    assert reply.headers["content-disposition"].startswith("attachment;")
    assert reply.headers["x-content-type-options"] == "nosniff"
    return reply.body


def query_of(parameters: dict[str, object]) -> str:
    return "?" + "&".join(f"{name}={value}" for name, value in parameters.items()) if parameters else ""


def test_every_answer_is_saved_with_the_same_rows(client: PageClient) -> None:
    for question in questions(client, SESSION):
        answer, query = answered(client, question), query_of(question.parameters)
        arrow = pa.ipc.open_file(pa.py_buffer(saved(client, "arrow", question.path, query))).read_all()
        assert arrow.equals(answer), question.path
        assert arrow.schema.metadata[b"rankmem"], "with its facts"
        rows = parquet.read_table(pa.BufferReader(saved(client, "parquet", question.path, query)))
        assert rows.to_pylist() == answer.to_pylist(), question.path
        lines = list(csv.reader(io.StringIO(saved(client, "csv", question.path, query).decode())))
        assert lines[0] == answer.column_names, question.path
        assert len(lines) == answer.num_rows + 1, question.path


def test_no_text_of_a_csv_is_a_formula(client: PageClient) -> None:
    text = saved(client, "csv", f"s/{SESSION}/job").decode() + saved(client, "csv", "sessions").decode()
    cells = [cell for line in csv.reader(io.StringIO(text)) for cell in line]
    assert any(evil in cell for evil in HOSTILE for cell in cells), "hostile names are in it"
    for cell in cells:
        assert not cell.lstrip().startswith(("=", "+", "@")), cell
        assert not cell.startswith("-") or cell[1:].replace(".", "").isdigit(), cell


def test_a_statement_is_saved_too(client: PageClient) -> None:
    body = json.dumps({"sql": "SELECT '=1+1' AS a, 2 AS b"}).encode()
    headers = {"sec-fetch-site": "same-origin", "content-type": "application/json"}
    reply = client.request("POST", "/api/v1/export/csv/sql", body, headers)
    assert reply.body.decode().splitlines() == ['"a","b"', '"\'=1+1",2']


def flame(parents: list[int], names: list[str | None], sizes: list[int]) -> pa.Table:
    rows = pa.table({"parent": pa.array(parents, pa.int32()), "name": names, "bytes": sizes})
    return of_database(rows, source="", sql="", rank=3)


def test_a_flame_graph_becomes_a_profile_of_speedscope() -> None:
    profile = speedscope_of(flame([-1, 0, 0, 1], ["all", "f", None, "f"], [100, 60, 30, 25]))
    assert profile["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert profile["shared"]["frames"] == [{"name": "all"}, {"name": "f"}, {"name": "unknown"}]
    (one,) = profile["profiles"]
    assert (one["type"], one["unit"], one["startValue"], one["endValue"]) == ("sampled", "bytes", 0, 100)
    assert dict(zip(map(tuple, one["samples"]), one["weights"], strict=True)) == {
        (0,): 10,
        (0, 1): 35,
        (0, 2): 30,
        (0, 1, 1): 25,
    }
    assert all(0 <= frame < 3 for sample in one["samples"] for frame in sample)
    json.dumps(profile, allow_nan=False)


@pytest.mark.parametrize(
    "options",
    [{}, {"by": "module"}, {"by": "operator", "inverted": 1, "category": 1}, {"recursion": "all"}],
    ids=lambda options: " ".join(options) or "by stack",
)
def test_a_saved_flame_graph_fits_speedscopes_published_schema(
    client: PageClient, database: Path, options: dict[str, object]
) -> None:
    asked: dict[str, object] = {"rank": 0, "which": "touching", **options}
    profile = json.loads(saved(client, "speedscope", f"s/{SESSION}/flame", query_of(asked)))
    assert json_schema.faults(json_schema.SPEEDSCOPE, profile) == []
    (one,) = profile["profiles"]
    assert len(one["samples"]) == len(one["weights"]) > 1
    assert min(one["weights"]) > 0
    assert all(isinstance(weight, int) for weight in one["weights"])
    frames = range(len(profile["shared"]["frames"]))
    assert all(sample and frame in frames for sample in one["samples"] for frame in sample)
    with connect(database) as queries:
        (row,) = queries.sql(
            "SELECT sum(size_bytes)::BIGINT AS bytes FROM allocation_record WHERE rank = 0 "
            "AND device = (SELECT device FROM allocation_record WHERE rank = 0 GROUP BY 1 "
            "ORDER BY sum(size_bytes) DESC LIMIT 1)"
        ).to_pylist()
    assert sum(one["weights"]) == one["endValue"] - one["startValue"] == row["bytes"]


def test_what_does_not_fit_the_schema_is_found() -> None:
    profile = speedscope_of(flame([-1, 0], ["all", "f"], [100, 60]))
    assert json_schema.faults(json_schema.SPEEDSCOPE, profile) == []
    for place, value, fault in (
        ("unit", "gibibytes", "$.profiles[0].unit is none of"),
        ("samples", [["0"]], "$.profiles[0].samples[0][0] is no number"),
        ("endValue", None, "$.profiles[0].endValue is no number"),
    ):
        (found, *_) = json_schema.faults(
            json_schema.SPEEDSCOPE, {**profile, "profiles": [{**profile["profiles"][0], place: value}]}
        )
        assert found.startswith(fault), found
    assert json_schema.faults(json_schema.SPEEDSCOPE, {**profile, "shared": {}}) == ["$.shared has no frames"]


def test_only_a_flame_graph_goes_to_speedscope(client: PageClient) -> None:
    reply = client.request("GET", f"/api/v1/export/speedscope/s/{SESSION}/job")
    assert (reply.status, reply.json()["code"]) == (400, "invalid")
    with pytest.raises(RankmemError) as refused:
        speedscope_of(pa.table({"name": ["a"]}))
    assert refused.value.code is Code.INVALID


def test_files_of_other_tools_are_those_of_rankmem_export(
    client: PageClient, database: Path, tmp_path: Path
) -> None:
    query = f"?rank=1&from={2 * SECOND_NS}&to={6 * SECOND_NS}"
    for kind, name, end in (("snapshot", "torch-snapshot", "pickle"), ("perfetto", "perfetto", "json.gz")):
        reply = client.request("GET", f"/api/v1/s/{SESSION}/file/{kind}{query}")
        assert reply.status == 200, reply.body
        assert reply.headers["content-disposition"] == f'attachment; filename="rankmem.{end}"'
        out = tmp_path / f"own.{end}"
        with connect(database) as queries:
            export(
                queries,
                name,
                out,
                ranks=[1],
                from_ns=BASE_NS + 2 * SECOND_NS,
                until_ns=BASE_NS + 6 * SECOND_NS,
            )
        if kind == "snapshot":
            assert pickle.loads(reply.body) == pickle.loads(out.read_bytes())
            assert any(pickle.loads(reply.body)["device_traces"])
        else:
            assert json.loads(gzip.decompress(reply.body)) == json.loads(gzip.decompress(out.read_bytes()))


def test_the_page_saves_itself_as_one_file(client: PageClient, tmp_path: Path) -> None:
    reply = client.request("GET", f"/api/v1/s/{SESSION}/file/html?ranks=0,2")
    assert reply.status == 200, reply.body
    assert "html" not in reply.headers["content-type"], "it is saved, never shown at this address"
    (tmp_path / "r.html").write_bytes(reply.body)
    content = content_of(tmp_path / "r.html")
    assert content["holds"].startswith("the job's peaks and heat map, and rank 0, 2")
    cookie = client.cookie.partition("=")[2].encode()
    assert cookie not in reply.body, "no secret is in it"


@pytest.mark.long
def test_the_file_of_a_session_that_is_older_than_those_listed_has_it(tmp_path: Path) -> None:
    """The list says how many there are; a file has its own session however old it is, and no other."""
    path = tmp_path / "many.duckdb"
    log = RankLog()
    log.alloc("a", 8, at=1)
    newer = [
        {"session_id": f"1NEWER{number:04}", "source": "live", "started_at_ns": BASE_NS + number * SECOND_NS}
        for number in range(SESSIONS_MAX + 2)
    ]
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
        store_rows(connection, "session", newer)
    with served_page(path) as many:
        listed = many.ask("sessions")
        assert listed.num_rows == SESSIONS_MAX
        assert facts_of(listed)["num_sessions"] == SESSIONS_MAX + 3
        assert SESSION not in listed["session_id"].to_pylist()
        assert facts_of(many.ask("sessions", limit=7))["num_sessions"] == SESSIONS_MAX + 3
        reply = many.request("GET", f"/api/v1/s/{SESSION}/file/html")
    assert reply.status == 200, reply.body
    (tmp_path / "r.html").write_bytes(reply.body)
    kept = answers_of(tmp_path / "r.html", "sessions")
    assert len(kept) == 2, "of the list, and of who opens the file without naming a session"
    for answer in kept:
        assert answer["session_id"].to_pylist() == [SESSION]
        assert facts_of(answer)["num_sessions"] == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"export/exe/s/{SESSION}/job", 404),
        (f"s/{SESSION}/file/exe", 404),
        ("s/none/file/html", 404),
        (f"s/{SESSION}/file/snapshot?rank=99", 404),
        (f"s/{SESSION}/file/snapshot?rank=x", 400),
        (f"s/{SESSION}/file/html?from=5&to=2", 400),
        (f"s/{SESSION}/file/html?from=9000000000000&to=9000000000001", 404),
        (f"export/csv/s/{SESSION}/curve", 400),
    ],
)
def test_what_cannot_be_saved_is_refused_with_a_hint(client: PageClient, path: str, status: int) -> None:
    reply = client.request("GET", f"/api/v1/{path}")
    assert reply.status == status, reply.body
    assert reply.json()["hint"]
