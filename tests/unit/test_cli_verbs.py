"""Each verb: its options become one call of the named query, whose rows are rendered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from rankmem_cli.main import app

START_NS = 1_795_264_702_000_000_000
ID = "1vg3zw6abcde"


class FakeQueries:
    """Remembers what was asked and answers with one row."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __enter__(self) -> FakeQueries:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append(("close",))

    def session_id(self, session: str | None = None) -> str:
        self.calls.append(("session_id", session))
        return ID

    def sessions(self) -> pa.Table:
        return pa.table({"session_id": [ID], "name": ["job"], "started_ns": [START_NS]})

    def stream(self, text: str) -> Iterator[pa.RecordBatch]:
        self.calls.append(("stream", text))
        yield pa.RecordBatch.from_pydict({"n": [1]})

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any, **options: Any) -> pa.Table:
            self.calls.append((name, *arguments, options))
            return pa.table(
                {"rank": [3], "operator": ["aten::mm"], "size_bytes": [1 << 30], "stack": [["a.py:1 f"]]}
            )

        return answer


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> FakeQueries:
    fake = FakeQueries()
    targets: list[Any] = []

    def connect(target: str) -> FakeQueries:
        targets.append(target)
        fake.calls.append(("connect", target))
        return fake

    monkeypatch.setattr("rankmem_aggregator.connect", connect)
    for name in ("RANKMEM_DB", "RANKMEM_AGGREGATOR"):
        monkeypatch.delenv(name, raising=False)
    return fake


def invoke(*arguments: str, **options: Any) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, **options)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (["peak", "--rank", "3"], ("peak", ID, {"rank": 3})),
        (["ranks"], ("ranks", ID, {})),
        (["hosts"], ("hosts", ID, {})),
        (["job-peak"], ("job_peak", ID, {})),
        (["ops"], ("ops", ID, {"by": "operator", "at": "peak", "rank": None})),
        (["ops", "--at", "total", "--by", "line"], ("ops", ID, {"by": "line", "at": "total", "rank": None})),
        (
            ["ops", "--at", "12.5s", "--by", "rank", "--rank", "1"],
            ("ops", ID, {"by": "rank", "at": START_NS + 12_500_000_000, "rank": 1}),
        ),
        (["live", "--rank", "3"], ("live", 3, ID, {"at": "peak"})),
        (["live", "--rank", "3", "--at", "+2:03.5"], ("live", 3, ID, {"at": START_NS + 123_500_000_000})),
        (["sql", "FROM gap"], ("stream", "FROM gap")),
    ],
)
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_a_verb_makes_one_call_and_closes(
    queries: FakeQueries, arguments: list[str], call: tuple[Any, ...], output: str
) -> None:
    out = invoke(*arguments, "--format", output)
    asked = [made for made in queries.calls if made[0] not in ("connect", "session_id", "close")]
    assert asked == [call]
    assert queries.calls[0] == ("connect", "rankmem.duckdb")
    assert queries.calls[-1] == ("close",)
    assert out


def test_the_rows_of_live_carry_the_stack_as_a_list(queries: FakeQueries) -> None:
    (row,) = json.loads(invoke("live", "--rank", "3", "--format", "json"))
    assert row["stack"] == ["a.py:1 f"]


def test_sql_is_read_from_stdin(queries: FakeQueries) -> None:
    invoke("sql", "-", input="SELECT 1")
    assert ("stream", "SELECT 1") in queries.calls


def test_a_session_is_passed_on_as_the_user_wrote_it(queries: FakeQueries) -> None:
    invoke("peak", "--session", "two ranks")
    assert ("session_id", "two ranks") in queries.calls


@pytest.mark.parametrize(
    ("flags", "variables", "target"),
    [
        (["--db", "x.duckdb"], {}, "x.duckdb"),
        (["--aggregator", "h:1"], {}, "h:1"),
        ([], {"RANKMEM_DB": "y.duckdb"}, "y.duckdb"),
        ([], {"RANKMEM_AGGREGATOR": "h:2"}, "h:2"),
        (["--db", "x.duckdb"], {"RANKMEM_AGGREGATOR": "h:2"}, "x.duckdb"),
        (["--aggregator", "h:1"], {"RANKMEM_DB": "y.duckdb"}, "h:1"),
    ],
)
def test_a_flag_beats_the_environment_and_that_the_default(
    queries: FakeQueries,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    variables: dict[str, str],
    target: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    invoke("sessions", *flags)
    assert queries.calls[0] == ("connect", target)


def test_a_place_for_recording_tells_a_file_from_an_aggregator(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankmem_cli.options import Place, place

    monkeypatch.delenv("RANKMEM_DB", raising=False)
    monkeypatch.setenv("RANKMEM_AGGREGATOR", "h:2")
    assert place(None, None) == Place(aggregator="h:2")
    assert place(Path("x"), None) == Place(db=Path("x"))
    monkeypatch.setenv("RANKMEM_AGGREGATOR", "")
    assert place(None, None) == Place(db=Path("rankmem.duckdb"))
