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
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

START_NS = 1_795_264_702_000_000_000
ID = "1vg3zw6abcde"
ANY_RANK = {"rank": None, "device": None}
LAST = {"attempt": None, "device": None}


class FakeQueries:
    """Remembers what was asked and answers with one row."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, pa.Table] = {}
        """What a query answers instead of the one row."""
        self.missing = pa.table({"sentence": pa.array([], pa.string())})
        self.incomplete = pa.table(
            {"session_id": pa.array([], pa.string()), "num_ranks": pa.array([], pa.int64())}
        )

    def __enter__(self) -> FakeQueries:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append(("close",))

    def session_id(self, session: str | None = None) -> str:
        self.calls.append(("session_id", session))
        return ID

    def sessions(self) -> pa.Table:
        return pa.table({"session_id": [ID], "name": ["job"], "started_ns": [START_NS]})

    def incompleteness(self, session: str) -> pa.Table:
        return self.missing

    def incomplete_sessions(self) -> pa.Table:
        return self.incomplete

    def stream(self, text: str) -> Iterator[pa.RecordBatch]:
        self.calls.append(("stream", text))
        yield pa.RecordBatch.from_pydict({"n": [1]})

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any, **options: Any) -> pa.Table:
            self.calls.append((name, *arguments, options))
            if name in self.answers:
                return self.answers[name]
            row = {"rank": 3, "operator": "aten::mm", "size_bytes": 1 << 30, "stack": ["a.py:1 f"]}
            more = {"group_name": "x", "module": "a.b", "depth": 1, "total_bytes": 5}
            return pa.Table.from_pylist([row | more])

        return answer


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> FakeQueries:
    fake = FakeQueries()
    targets: list[Any] = []

    def connect(target: str, credentials: Credentials, *, unsafe: bool = False) -> FakeQueries:
        targets.append(target)
        fake.calls.append(("connect", target))
        return fake

    monkeypatch.setattr("rankmem_aggregator.query.open.open_queries", connect)
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
    from rankmem_cli.args.options import Target
    from rankmem_cli.args.options import target as target_of

    monkeypatch.delenv("RANKMEM_DB", raising=False)
    monkeypatch.setenv("RANKMEM_AGGREGATOR", "h:2")
    assert target_of(None, None) == Target(aggregator="h:2")
    assert target_of(Path("x"), None) == Target(db=Path("x"))
    monkeypatch.setenv("RANKMEM_AGGREGATOR", "")
    assert target_of(None, None) == Target(db=Path("rankmem.duckdb"))


def refused(*arguments: str) -> RankmemError:
    with pytest.raises(RankmemError) as told:
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return told.value


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
def test_a_timeline_is_written_where_the_user_says(queries: FakeQueries, tmp_path: Path, end: str) -> None:
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


def test_an_empty_timeline_says_so_and_draws_nothing(queries: FakeQueries) -> None:
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
    ("changed", "said"),
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
def test_the_jobs_peak_says_gap_and_certainty(
    queries: FakeQueries, changed: dict[str, Any], said: str
) -> None:
    queries.answers["job_peak_bound"] = pa.Table.from_pylist([BOUND | changed])
    done = CliRunner().invoke(app, ["job-peak"], catch_exceptions=False)
    assert "cuda: 8.00 GiB on 2 ranks at +1.000 s" in done.stderr
    assert "add up to 10.00 GiB, 2.00 GiB (25.0%) more" in done.stderr
    assert said in done.stderr
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


def test_the_first_failure_is_taken_apart_and_the_others_are_listed_behind_it(queries: FakeQueries) -> None:
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


def test_any_failure_is_taken_apart_and_one_that_is_not_there_is_refused(queries: FakeQueries) -> None:
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


def test_a_job_that_never_ran_out_says_so(queries: FakeQueries) -> None:
    queries.answers["oom"] = pa.Table.from_pylist([FAILURE]).slice(0, 0)
    assert "no allocation failed" in CliRunner().invoke(app, ["oom"], catch_exceptions=False).stderr


def test_the_failures_of_a_job_in_json_are_those_of_the_query(queries: FakeQueries) -> None:
    queries.answers["oom"] = pa.Table.from_pylist([FAILURE])
    assert json.loads(invoke("oom", "--format", "json")) == [FAILURE]
