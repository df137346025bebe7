"""JSON and CSV carry plain values; notes go to stderr; nothing that acts on a terminal leaves."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from rankmem_cli.show import columns
from rankmem_cli.show.render import Format, begin, head, note, plain, show, show_stream


def rows() -> pa.Table:
    return pa.table(
        {
            "rank": pa.array([0, 1], pa.int32()),
            "operator": ["aten::mm", None],
            "stack": [["train.py:3 forward", "train.py:9 main"], []],
            "size_bytes": pa.array([2**53 + 1, 0], pa.int64()),
            "total": pa.array([decimal.Decimal(2**70), None], pa.decimal128(38, 0)),
            "at": pa.array(
                [datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)] * 2, pa.timestamp("us", "UTC")
            ),
            "ratio": [float("nan"), 0.25],
            "complete": [True, None],
            "at_utc": pa.array([datetime.datetime(2026, 11, 21)] * 2, pa.timestamp("us")),
        }
    )


def test_json_keeps_integers_exact_and_stacks_as_lists(capsys: pytest.CaptureFixture[str]) -> None:
    show(rows(), [], output=Format.JSON)
    first, second = json.loads(capsys.readouterr().out)
    assert first["size_bytes"] == 2**53 + 1
    assert first["total"] == 2**70
    assert first["stack"] == ["train.py:3 forward", "train.py:9 main"]
    assert first["at"] == first["at_utc"] == "2026-11-21T00:00:00+00:00"
    assert first["ratio"] is None
    assert second == {**second, "operator": None, "stack": [], "ratio": 0.25, "complete": None}
    assert list(first) == rows().column_names


def test_json_of_no_rows_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    show(rows().slice(0, 0), [], output=Format.JSON)
    assert json.loads(capsys.readouterr().out) == []


def test_json_is_ascii_so_that_names_cannot_act_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(pa.table({"operator": ["\x1b[2J\x9b\u202eé"]}), [], output=Format.JSON)
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert json.loads(out) == [{"operator": "\x1b[2J\x9b\u202eé"}]


def test_csv_has_the_results_own_names_and_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    show(rows(), [], output=Format.CSV)
    header, first, second = csv.reader(io.StringIO(capsys.readouterr().out))
    assert header == rows().column_names
    assert first[:5] == ["0", "aten::mm", "train.py:3 forward < train.py:9 main", str(2**53 + 1), str(2**70)]
    assert first[7] == "true"
    assert second[1] == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_csv_on_a_terminal_is_made_safe_and_in_a_pipe_is_left_alone() -> None:
    hostile = pa.table({"operator": ["\x1b[2J"]})
    on_terminal, in_pipe = Terminal(), io.StringIO()
    begin(Format.CSV, on_terminal).write(hostile)
    begin(Format.CSV, in_pipe).write(hostile)
    assert "\x1b" not in on_terminal.getvalue()
    assert "\x1b[2J" in in_pipe.getvalue()


def test_a_table_in_a_pipe_has_no_colour_and_its_title_is_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    peaks = pa.table({"rank": [3], "peak_requested_bytes": [1 << 30]})
    show(peaks, columns.peak(0), output=Format.TABLE, title="session x")
    out, err = capsys.readouterr()
    assert out.split() == ["rank", "peak", "3", "1.00", "GiB"]
    assert "\x1b" not in out
    assert err == "session x\n"


def test_no_rows_are_noted_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show(pa.table({"rank": pa.array([], pa.int32())}), columns.peak(0), output=Format.TABLE)
    assert capsys.readouterr().err == "no rows\n"


def test_a_note_is_made_safe(capsys: pytest.CaptureFixture[str]) -> None:
    note("session \x1b[31mred")
    assert capsys.readouterr().err == "session \\x1b[31mred\n"


def test_a_table_is_cut_at_its_limit_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    result = pa.table({"n": list(range(50))})
    assert head(result, None, output=Format.TABLE, table_rows=20).num_rows == 20
    assert "first 20 of 50" in capsys.readouterr().err
    assert head(result, 0, output=Format.TABLE, table_rows=20).num_rows == 50
    assert head(result, 7, output=Format.JSON, table_rows=20).num_rows == 7
    assert head(result, None, output=Format.JSON, table_rows=20).num_rows == 50
    assert capsys.readouterr().err == ""


def batches(taken: list[int]) -> Iterator[pa.RecordBatch]:
    for start in range(0, 1000, 10):
        taken.append(start)
        yield pa.RecordBatch.from_pydict({"n": list(range(start, start + 10))})


def test_a_stream_is_read_no_further_than_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    taken: list[int] = []
    show_stream(batches(taken), 25, output=Format.CSV, table_rows=100)
    assert capsys.readouterr().out.split() == ["n", *map(str, range(25))]
    assert taken == [0, 10, 20]


def test_a_stream_as_json_is_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_stream(batches([]), None, output=Format.JSON, table_rows=5)
    assert [row["n"] for row in json.loads(capsys.readouterr().out)] == list(range(1000))


def test_a_long_stream_in_a_table_has_a_note_that_there_is_more(capsys: pytest.CaptureFixture[str]) -> None:
    show_stream(batches([]), None, output=Format.TABLE, table_rows=15)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 16
    assert "--limit 0" in err


def test_a_stream_that_ends_at_the_limit_claims_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    show_stream(batches([]), None, output=Format.TABLE, table_rows=1000)
    assert capsys.readouterr().err == ""


def test_values_without_a_json_form_become_text() -> None:
    assert plain(b"\x00\xff") == "00ff"
    assert plain(datetime.timedelta(seconds=1)) == "0:00:01"
    assert plain({"a": [decimal.Decimal("1.50"), float("inf")]}) == {"a": [1.5, None]}


class _Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_note_is_fitted_to_a_terminal_and_left_alone_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "  columns left out: " + ", ".join(f"column-{number}" for number in range(12))
    note(long)
    assert capsys.readouterr().err == f"{long}\n"
    terminal = _Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stderr", terminal)
    note(long)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("  columns left out: column-0")
    assert " ".join(line.strip() for line in lines) == long.strip()


@pytest.mark.parametrize("width", [80, 120])
def test_a_command_in_a_note_is_not_broken(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"rankmem oom --db '/data/{'long/' * 20}a b' --session 1vg3zw6abcde --by line --failure 2"
    terminal = _Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stderr", terminal)
    note(f"  there were some more failures than this, which are of other ranks: {command} analyses the next")
    lines = terminal.getvalue().splitlines()
    assert any(command in line for line in lines)
    assert max(len(line) for line in lines if command not in line) <= width


@pytest.mark.parametrize(
    "name",
    [
        "=1+1",
        "+1",
        "-1+cmd|' /C calc'!A0",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        " =1",
        "\n @A",
        "\xa0+1",
        "\ufeff-1",
        "\uff1d1",
    ],
)
def test_a_name_is_no_formula_to_a_spreadsheet_and_stays_exact_in_json(name: str) -> None:
    rows = pa.table({"operator": [name], "bytes": [-5]})
    csv_file, json_file = io.StringIO(), io.StringIO()
    for output, file in ((Format.CSV, csv_file), (Format.JSON, json_file)):
        written = begin(output, file)
        written.write(rows)
        written.end()
    ((_, cells),) = [list(csv.reader(io.StringIO(csv_file.getvalue(), newline="")))]
    assert cells == ["'" + name.replace("\r", "\\r"), "-5"]
    assert json.loads(json_file.getvalue()) == [{"operator": name, "bytes": -5}]
