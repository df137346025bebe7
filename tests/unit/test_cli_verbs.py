"""Each verb: its options become one call of the named query, whose rows are rendered."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from constructed import empty_database
from rankmem_aggregator.query import open as opening
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.sql import query_names, query_text
from rankmem_cli.main import app
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

START_NS = 1_795_264_702_000_000_000
ID = "1vg3zw6abcde"
ANY_RANK = {"rank": None, "device": None}
LAST = {"attempt": None, "device": None}


class FakeQueries(Queries):
    """Answers each named query with one row that has the columns of its real answer.

    The columns are those of an empty database: a verb that needs one that does not exist fails.
    """

    target = "fake"

    def __init__(self, empty: Queries) -> None:
        self._empty = empty
        self._within = False
        self.calls: list[tuple[Any, ...]] = []
        """The questions that the verb asked, with their arguments."""
        self.num_statements = 0
        """The statements sent: each is a round trip to a remote aggregator."""
        self.credentials = Credentials()
        """Those that the verb opened it with."""
        self.answers: dict[str, pa.Table] = {}
        """What a question answers instead of the one row; columns that are left out are NULL."""

    def interrupt(self) -> None:
        raise AssertionError("no verb interrupts its question")

    def allow(self) -> None:
        raise AssertionError("no verb interrupts its question")

    def sql(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        self.num_statements += 1
        if text not in SCHEMAS:
            SCHEMAS[text] = self._empty.sql(text, parameters).schema
        schema = SCHEMAS[text]
        name = NAMES.get(text, "")
        if name.startswith("incomplete"):
            return schema.empty_table()
        if name in self.answers and set(self.answers[name].column_names) <= set(schema.names):
            return pa.Table.from_pylist(self.answers[name].to_pylist(), schema)
        known = {"session_id": ID, "name": "job", "started_ns": START_NS} if "session" in name else {}
        return pa.Table.from_pylist([{f.name: known.get(f.name, a_value(f.type)) for f in schema}], schema)

    def stream(self, text: str, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        self.calls.append(("stream", text))
        yield pa.RecordBatch.from_pydict({"n": [1]})

    def copy_to(self, out_path: Path) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.calls.append(("close",))

    def asked(self, name: str, answer: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Notes a question of the verb, not those that the question itself asks, and answers it."""
        if self._within:
            return answer(*arguments, **options)
        self.calls.append((name, *arguments, options))
        given = self.answers.get(name)
        if name == "timeline" and given is not None:
            return given
        self._within = True
        try:
            real = answer(*arguments, **options)
        finally:
            self._within = False
        if given is None:
            return real
        assert set(given.column_names) <= set(real.column_names), "a column that the question does not have"
        return pa.Table.from_pylist(given.to_pylist(), real.schema)


def a_value(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return ["a.py:1 f"] if pa.types.is_string(kind.value_type) else [1]
    if pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return "x" if pa.types.is_string(kind) else True
    return 1 if pa.types.is_integer(kind) else 0.5 if pa.types.is_floating(kind) else None


def recorded(name: str) -> Callable[..., Any]:
    """The question of ``Queries`` with that name, noted."""

    def ask(self: FakeQueries, *arguments: Any, **options: Any) -> Any:
        return self.asked(name, functools.partial(getattr(Queries, name), self), *arguments, **options)

    return ask


BESIDE = ("connect", "session_facts", "incomplete_sessions", "close")
"""What every verb calls beside its own question."""
SCHEMAS: dict[str, pa.Schema] = {}
"""Of each statement's answer, once for all tests."""
NAMES = {query_text(name): name for name in query_names()}
UNRECORDED = {
    *("sql", "stream", "copy_to", "interrupt", "allow", "close"),
    *("session_id", "sessions", "incompleteness", "with_missing"),
}
for name, member in inspect.getmembers(Queries):
    if inspect.isfunction(member) and not name.startswith("_") and name not in UNRECORDED:
        setattr(FakeQueries, name, recorded(name))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    path = tmp_path_factory.mktemp("empty") / "mem.duckdb"
    empty_database(str(path)).close()
    with opening.open_queries(path, Credentials()) as queries:
        yield queries


@pytest.fixture
def queries(empty: Queries, monkeypatch: pytest.MonkeyPatch) -> FakeQueries:
    fake = FakeQueries(empty)

    def connect(
        target: str, credentials: Credentials, *, unsafe: bool = False, engine: object = None
    ) -> FakeQueries:
        fake.calls.append(("connect", target))
        fake.credentials = credentials
        return fake

    monkeypatch.setattr(opening, "open_queries", connect)
    for name in ("RANKMEM_DB", "RANKMEM_AGGREGATOR", "RANKMEM_LAKE", "RANKMEM_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    return fake


def invoke(*arguments: str, **options: Any) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, **options)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (
            ["peak", "--rank", "3", "--at-least", "1.5KiB"],
            ("peak_by", ID, {"by": "rank", "rank": 3, "at_least_bytes": 1536}),
        ),
        (["ranks"], ("ranks", ID, {})),
        (["hosts"], ("hosts", ID, {})),
        (
            ["peak", "--by", "host"],
            ("peak_by", ID, {"by": "host", "rank": None, "at_least_bytes": 0}),
        ),
        (
            ["peak", "--by", "category", "--rank", "2"],
            ("peak_by", ID, {"by": "category", "rank": 2, "at_least_bytes": 0}),
        ),
        (["job-peak", "--by", "rank"], ("job_peak", ID, {})),
        (["job-peak", "--by", "module"], ("job_peak_held", ID, {"by": "module"})),
        (["modules", "--rank", "1"], ("modules", ID, {"rank": 1})),
        (["weights"], ("weights", ID, {"rank": None})),
        (["steps", "--rank", "0"], ("steps", ID, {"rank": 0})),
        (["ops"], ("ops", ID, {"by": "operator", "at": "peak", **ANY_RANK})),
        (
            ["ops", "--by", "annotation"],
            ("ops", ID, {"by": "annotation", "at": "peak", **ANY_RANK}),
        ),
        (
            ["ops", "--at", "total", "--by", "line"],
            ("ops", ID, {"by": "line", "at": "total", **ANY_RANK}),
        ),
        (
            ["ops", "--at", "12.5s", "--by", "rank", "--rank", "1"],
            ("ops", ID, {"by": "rank", "at": START_NS + 12_500_000_000, "rank": 1, "device": None}),
        ),
        (["live", "--rank", "3"], ("live", 3, ID, {"at": "peak", **LAST})),
        (
            ["live", "--rank", "3", "--at", "+2:03.5"],
            ("live", 3, ID, {"at": START_NS + 123_500_000_000, **LAST}),
        ),
        (["sql", "FROM gap"], ("stream", "FROM gap")),
    ],
)
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_a_verb_makes_one_call_and_closes(
    queries: FakeQueries, arguments: list[str], call: tuple[Any, ...], output: str
) -> None:
    out = invoke(*arguments, "--format", output)
    asked = [made for made in queries.calls if made[0] not in BESIDE]
    assert asked == [call]
    assert queries.calls[0] == ("connect", "rankmem.duckdb")
    assert queries.calls[-1] == ("close",)
    assert out


@pytest.mark.parametrize(
    ("arguments", "num_statements"),
    [
        (["sessions"], 2),
        *(
            (verb, 3)
            for verb in (["ranks"], ["hosts"], ["peak"], ["ops"], ["modules"], ["weights"], ["steps"])
        ),
        (["status"], 3),
        (["top", "--once"], 3),
        (["live", "--rank", "3"], 3),
        (["job-peak", "--by", "rank"], 3),
    ],
)
def test_a_verb_finds_its_session_asks_and_looks_for_what_is_missing_once_each(
    queries: FakeQueries, arguments: list[str], num_statements: int
) -> None:
    invoke(*arguments)
    assert queries.num_statements == num_statements
    assert [made[0] for made in queries.calls].count("session_facts") == (arguments != ["sessions"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions"], ["ranks"], ["status"], ["top", "--once"], ["hosts"], ["peak"], ["ops"], ["job-peak"],
        ["live", "--rank", "3"], ["timeline"], ["modules"], ["weights"], ["steps"], ["oom"],
        ["sql", "FROM gap"],
    ],
)  # fmt: skip
def test_a_verb_passes_its_credentials_on(queries: FakeQueries, arguments: list[str]) -> None:
    queries.answers["timeline"] = timeline_rows()
    files = ["--tls-ca", "ca", "--tls-cert", "cert", "--tls-key", "key", "--token-file", "token"]
    invoke(*arguments, *files, "--aggregator", "h:1")
    assert queries.credentials == Credentials(tls_ca="ca", tls_cert="cert", tls_key="key", token_file="token")


def test_the_rows_of_live_carry_the_stack_as_a_list(queries: FakeQueries) -> None:
    (row,) = json.loads(invoke("live", "--rank", "3", "--format", "json"))
    assert row["stack"] == ["a.py:1 f"]


def test_sql_is_read_from_stdin(queries: FakeQueries) -> None:
    invoke("sql", "-", input="SELECT 1")
    assert ("stream", "SELECT 1") in queries.calls


def test_a_session_is_passed_on_as_the_user_wrote_it(queries: FakeQueries) -> None:
    invoke("peak", "--session", "two ranks")
    assert ("session_facts", "two ranks", {}) in queries.calls


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


def test_a_target_is_a_file_or_an_aggregator(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankmem_cli.args.options import Target
    from rankmem_cli.args.options import target as target_of

    monkeypatch.delenv("RANKMEM_DB", raising=False)
    monkeypatch.setenv("RANKMEM_AGGREGATOR", "h:2")
    assert target_of(None, None) == Target(aggregator="h:2")
    assert target_of(Path("x"), None) == Target(db=Path("x"))
    monkeypatch.setenv("RANKMEM_AGGREGATOR", "")
    assert target_of(None, None) == Target(db=Path("rankmem.duckdb"))


def refused(*arguments: str) -> RankmemError:
    with pytest.raises(RankmemError) as raised:
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return raised.value


def test_a_rank_does_not_go_with_groups_of_ranks(queries: FakeQueries) -> None:
    assert refused("peak", "--by", "host", "--rank", "1").code is Code.INVALID
    assert [made[0] for made in queries.calls] == []


def test_a_timeline_passes_its_range_on_as_instants(queries: FakeQueries) -> None:
    queries.answers["timeline"] = timeline_rows()
    range_asked = ("--from", "1s", "--until", "2s")
    invoke("timeline", "--by", "stream", "--figure", "all", "--rank", "1", *range_asked, "--format", "csv")
    (call,) = [made for made in queries.calls if made[0] == "timeline"]
    asked = call[2]
    assert (asked["by"], asked["figure"], asked["rank"]) == ("stream", "all", [1])
    assert (asked["from_ns"], asked["until_ns"]) == (START_NS + 10**9, START_NS + 2 * 10**9)


def test_a_timeline_of_several_ranks_is_one_of_their_sum_by_rank(queries: FakeQueries) -> None:
    queries.answers["timeline"] = timeline_rows()
    one, two = ["--rank", "1"], ["--rank", "1", "--rank", "4"]
    for given, by in (([], "overall"), (one, "overall"), (two, "rank")):
        invoke("timeline", *given, "--format", "csv")
        assert [made for made in queries.calls if made[0] == "timeline"][-1][2]["by"] == by
    invoke("timeline", *two, "--by", "host", "--format", "csv")
    asked = [made for made in queries.calls if made[0] == "timeline"][-1][2]
    assert (asked["by"], asked["rank"]) == ("host", [1, 4])
    invoke("timeline", "--all-ranks", "--by", "category", "--format", "csv")
    asked = [made for made in queries.calls if made[0] == "timeline"][-1][2]
    assert (asked["by"], asked["rank"]) == ("category", "all")
    assert refused("timeline", "--all-ranks", *one).code is Code.INVALID


def timeline_rows() -> pa.Table:
    rows = [
        {"time_ns": START_NS + second * 10**9, "group": group, "bytes": second * size}
        for group, size in (("activation", 1 << 30), ("parameter", 1 << 20))
        for second in range(1, 5)
    ]
    facts = {"rank": "1", "device": "cuda:0", "host_name": "node-7", "attempt": "0", "exact": "True"}
    return pa.Table.from_pylist(rows).replace_schema_metadata(facts)


def test_a_timeline_is_drawn_with_its_peak_its_parts_and_its_axes(queries: FakeQueries) -> None:
    queries.answers["timeline"] = timeline_rows()
    done = CliRunner(env={"COLUMNS": "90"}).invoke(
        app, ["timeline", "--by", "category"], catch_exceptions=False
    )
    lines = done.stdout.splitlines()
    assert "4.00 GiB ┤" in lines[0]
    assert any("■ activation" in line and "4.00 GiB" in line for line in lines)
    assert any("■ parameter" in line and "4.00 MiB" in line for line in lines)
    assert any("+2 s" in line for line in lines)
    assert max(map(len, lines)) <= 90
    assert "rank 1, cuda:0 on node-7, by category" in done.stderr
    assert "highest: 4.00 GiB at +4.000 s" in done.stderr


def test_a_timelines_json_has_the_querys_own_names_and_plain_numbers(queries: FakeQueries) -> None:
    queries.answers["timeline"] = timeline_rows()
    rows = json.loads(invoke("timeline", "--format", "json"))
    assert rows[0] == {"time_ns": START_NS + 10**9, "group": "activation", "bytes": 1 << 30}
    assert len(rows) == 8


@pytest.mark.parametrize("end", ["html", "png", "csv", "parquet"])
def test_a_timeline_is_written_to_the_given_file(queries: FakeQueries, tmp_path: Path, end: str) -> None:
    queries.answers["timeline"] = timeline_rows()
    out_path = tmp_path / f"x.{end}"
    out_path.write_text("from before")
    done = CliRunner().invoke(app, ["timeline", "--out", str(out_path)], catch_exceptions=False)
    assert f"wrote {out_path}" in done.stderr
    assert out_path.read_bytes()[:4] == {
        "html": b"<!do", "png": b"\x89PNG", "csv": b"time", "parquet": b"PAR1"
    }[end]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == [out_path.name]


def test_the_points_in_a_file_are_those_of_the_query(queries: FakeQueries, tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    queries.answers["timeline"] = timeline_rows()
    for name in ("x.csv", "x.parquet"):
        invoke("timeline", "--out", str(tmp_path / name))
    for rows in (csv.read_csv(tmp_path / "x.csv"), parquet.read_table(tmp_path / "x.parquet")):
        assert rows.to_pylist() == timeline_rows().to_pylist()


def test_a_file_of_no_known_kind_is_refused_before_anything_is_asked(
    queries: FakeQueries, tmp_path: Path
) -> None:
    assert refused("timeline", "--out", str(tmp_path / "x.svg")).code is Code.INVALID
    assert refused("timeline", "--out", str(tmp_path / "none" / "x.html")).code is Code.NOT_FOUND
    assert queries.calls == []


def test_an_empty_timeline_is_noted_and_not_drawn(queries: FakeQueries) -> None:
    queries.answers["timeline"] = timeline_rows().slice(0, 0)
    done = CliRunner().invoke(app, ["timeline"], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert "no events" in done.stderr


BOUND = {
    "device_type": "cuda", "job_peak_bytes": 8 << 30, "job_peak_ns": START_NS + 10**9, "num_ranks": 2,
    "sum_of_peaks_bytes": 10 << 30, "gap_bytes": 2 << 30, "clock_error_ns": 250_000,
    "lowest_bytes": 7 << 30, "highest_bytes": 9 << 30, "order_is_certain": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {},
            "depending on other hosts' events in that time, the sum was between 7.00 GiB and 9.00 GiB",
        ),
        ({"order_is_certain": True}, "no other host has an event within that time: the answer is certain"),
        ({"clock_error_ns": 0}, "one clock"),
        ({"clock_error_ns": None}, "never compared"),
    ],
)
def test_the_jobs_peak_gives_gap_and_certainty(
    queries: FakeQueries, changed: dict[str, Any], expected: str
) -> None:
    queries.answers["job_peak_bound"] = pa.Table.from_pylist([BOUND | changed])
    done = CliRunner().invoke(app, ["job-peak"], catch_exceptions=False)
    assert "cuda: 8.00 GiB on 2 ranks at +1.000 s" in done.stderr
    assert "add up to 10.00 GiB, 2.00 GiB (25.0%) more" in done.stderr
    assert expected in done.stderr
    asked = [made for made in queries.calls if made[0].startswith("job_peak")]
    assert [made[0] for made in asked].count(
        "job_peak"
    ) == 1  # most of the time; the others are given its rows
    assert all("shares" in made[2] for made in asked if made[0] != "job_peak")
    assert [made[2].get("by") for made in asked] == [None, None, "category", "operator"]


FAILURE = {
    "attempt": 0, "rank": 3, "device": "cuda:1", "host_name": "node-7", "seq": 99,
    "time_ns": START_NS + 10**9,
    "size_bytes": 2 << 30, "device_free_bytes": 1 << 30, "requested_bytes": 70 << 30,
    "device_total_bytes": 80 << 30, "app_bytes": 1 << 29,
    "reserved_bytes": 78 << 30, "unused_bytes": 8 << 30, "largest_free_bytes": 1 << 29,
    "fragmentation": 0.9375,
    "operator": "aten::mm", "line": "train.py:7",
}  # fmt: skip


LATER = FAILURE | {"rank": 1, "seq": 500, "time_ns": START_NS + 2 * 10**9, "size_bytes": 512, "line": None}


def test_the_first_failure_is_analysed_and_the_others_are_listed(queries: FakeQueries) -> None:
    queries.answers["oom"] = pa.Table.from_pylist([FAILURE, LATER])
    done = CliRunner().invoke(app, ["oom"], catch_exceptions=False)
    assert [line.split()[0] for line in done.stdout.splitlines()[1:3]] == ["3", "1"]
    assert (
        "the first of 2: aten::mm asked for 2.00 GiB (rounded up by the allocator) with 70.00 GiB alive "
        "on rank 3, cuda:1\n  at train.py:7\n" in done.stderr
    )
    assert "1 more failure: rankmem oom --failure 2 analyses the next" in done.stderr
    assert "free on cuda:1: 1.00 GiB of 80.00 GiB" in done.stderr
    assert "reserved by PyTorch: 78.00 GiB, of which 8.00 GiB unused, largest piece 512.00 MiB" in done.stderr
    assert "held by the process outside PyTorch: 512.00 MiB" in done.stderr
    assert "that was enough" not in done.stderr
    assert "93.8%" in done.stdout
    place = {"attempt": 0, "rank": 3, "device": "cuda:1", "seq": 99}
    for by in ("category", "operator", "line"):
        assert ("oom_held", ID, {**place, "by": by}) in queries.calls
    assert ("held_at", START_NS + 10**9, ID, {}) in queries.calls


@pytest.mark.parametrize(
    ("device", "limit"), [("cuda:1", "set_per_process_memory_fraction"), ("cpu", "ulimit")]
)
def test_a_failure_with_enough_free_names_the_limits_that_may_have_stopped_it(
    queries: FakeQueries, device: str, limit: str
) -> None:
    queries.answers["oom"] = pa.Table.from_pylist(
        [FAILURE | {"device": device, "device_free_bytes": 9 << 30}]
    )
    done = CliRunner().invoke(app, ["oom"], catch_exceptions=False)
    assert f"that was enough: a limit on the process stopped it ({limit}" in done.stderr
    assert ("rounded up" in done.stderr) == (device != "cpu")


def test_any_failure_is_analysed_and_one_that_does_not_exist_is_refused(queries: FakeQueries) -> None:
    queries.answers["oom"] = pa.Table.from_pylist([FAILURE, LATER])
    done = CliRunner().invoke(app, ["oom", "--failure", "2", "--limit", "1"], catch_exceptions=False)
    assert "failure 2 of 2: aten::mm asked for 512 B" in done.stderr
    assert len([line for line in done.stdout.splitlines() if "train.py:7" in line]) == 1, "one row of the two"
    assert (
        "oom_held",
        ID,
        {"attempt": 0, "rank": 1, "device": "cuda:1", "seq": 500, "by": "line"},
    ) in queries.calls
    assert "no failure 3: 2 allocations failed" in refused("oom", "--failure", "3").message


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_one_part_of_the_first_failure_is_asked_for_alone(queries: FakeQueries, output: str) -> None:
    queries.answers["oom"] = pa.Table.from_pylist([FAILURE, LATER])
    invoke("oom", "--by", "module", "--rank", "3", "--format", output)
    asked = [made for made in queries.calls if made[0] in ("oom", "oom_held", "held_at")]
    place = {"attempt": 0, "rank": 3, "device": "cuda:1", "seq": 99}
    assert asked == [("oom", ID, {"rank": 3}), ("oom_held", ID, {**place, "by": "module"})]


def test_a_part_of_no_failure_is_an_error(queries: FakeQueries) -> None:
    queries.answers["oom"] = pa.Table.from_pylist([FAILURE]).slice(0, 0)
    assert refused("oom", "--by", "rank").code is Code.NOT_FOUND


def test_a_job_without_failures_reports_that(queries: FakeQueries) -> None:
    queries.answers["oom"] = pa.Table.from_pylist([FAILURE]).slice(0, 0)
    assert (
        "no failed allocation was recorded" in CliRunner().invoke(app, ["oom"], catch_exceptions=False).stderr
    )


def test_the_failures_of_a_job_in_json_are_those_of_the_query(queries: FakeQueries) -> None:
    queries.answers["oom"] = pa.Table.from_pylist([FAILURE])
    (row,) = json.loads(invoke("oom", "--format", "json"))
    assert {name: row[name] for name in FAILURE} == FAILURE
