"""Tables that fit: what is shortened, what goes, and that no number is ever cut."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from rankmem_cli.show import columns
from rankmem_cli.show.table import Column, lay_out, number, path, plain_columns, shorten, size, text

START_NS = 1_795_264_702_000_000_000
WIDTHS = (60, 80, 120)


def drawn(rows: pa.Table, shown: list[Column], width: int | None) -> tuple[list[str], list[str]]:
    """The lines of a table, without the blanks at their ends, and the columns left out."""
    table, left_out = lay_out(rows, shown, width)
    file = io.StringIO()
    Console(file=file, width=width or 1000, highlight=False, markup=False).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()], left_out


def peaks(num_ranks: int = 3) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "session_id": "1vg3zw6abcde",
                "attempt": 0,
                "rank": rank,
                "host_name": "gpu-node-0123.cluster.example.org",
                "device": "cuda:0",
                "peak_requested_bytes": (37 << 30) + rank * 12_345_678,
                "peak_allocated_bytes": (38 << 30) + rank,
                "peak_reserved_bytes": 40 << 30,
                "peak_time_ns": START_NS + 3_725_123_456_789 + rank,
                "complete": rank != 1,
            }
            for rank in range(num_ranks)
        ]
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_a_peak_table_fits_and_keeps_every_number_whole(width: int) -> None:
    lines, left_out = drawn(peaks(), columns.peak(START_NS), width)
    assert len(lines) == 4
    assert all(cell_len(line) <= width for line in lines)
    for rank, line in enumerate(lines[1:]):
        assert line.split()[0] == str(rank)
        assert f"{37 + rank * 12_345_678 / (1 << 30):.2f} GiB" in line
        assert "+1:02:05.123" in line
    assert (left_out == []) == (width == 120)


def test_a_wide_terminal_shows_the_whole_instant_and_host() -> None:
    lines, left_out = drawn(peaks(), columns.peak(START_NS), 160)
    assert left_out == []
    assert "2026-11-21 13:40:27.123" in lines[1]
    assert "gpu-node-0123.cluster.example.org" in lines[1]


def test_a_pipe_gets_every_column_at_full_width() -> None:
    lines, left_out = drawn(peaks(), columns.peak(START_NS), None)
    assert left_out == []
    assert "gpu-node-0123.cluster.example.org" in lines[1]
    assert [name for name in ("rank", "allocated", "reserved", "complete") if name not in lines[0]] == []


def test_the_least_important_column_goes_first_and_is_named() -> None:
    rows = pa.table({"rank": [1], "a": ["x" * 30], "b": ["y" * 30]})
    shown = [number("rank", "rank"), text("a", "a", importance=1), text("b", "b", importance=2)]
    lines, left_out = drawn(rows, shown, 20)
    assert left_out == ["a"]
    assert lines[0].split() == ["rank", "b"]


def test_where_it_is_narrow_a_column_without_a_value_makes_room_without_a_word() -> None:
    rows = pa.table({"rank": [1], "a": pa.array([None], pa.string()), "b": ["y" * 16], "c": ["z" * 12]})
    shown = [number("rank", "rank"), text("a", "a", importance=9), text("b", "b"), text("c", "c")]
    lines, left_out = drawn(rows, shown, 36)
    assert (lines[0].split(), left_out) == (["rank", "b", "c"], [])
    assert drawn(rows, shown, 80)[0][0].split() == ["rank", "a", "b", "c"]


def test_texts_are_shortened_before_a_column_goes() -> None:
    rows = pa.table({"operator": ["aten::_scaled_dot_product_flash_attention_for_cpu"], "bytes": [1 << 30]})
    lines, left_out = drawn(rows, [text("operator", "operator"), size("bytes", "bytes")], 40)
    assert left_out == []
    assert "…" in lines[1]
    assert lines[1].endswith("1.00 GiB")


def test_a_path_loses_its_front_and_keeps_its_line() -> None:
    rows = pa.table({"line": ["site-packages/torch/nn/modules/linear.py:1234"], "n": [5]})
    lines, _ = drawn(rows, [path("line", "line"), number("n", "n")], 30)
    assert lines[1].startswith("…")
    assert "linear.py:1234" in lines[1]


def test_numbers_stand_at_the_right_of_their_column() -> None:
    rows = pa.table({"rank": [7, 1234], "bytes": [1, 1 << 40]})
    lines, _ = drawn(rows, [number("rank", "rank"), size("bytes", "bytes")], 80)
    assert lines[0].index("rank") + len("rank") == lines[1].index("7") + 1
    assert len(lines[1]) == len(lines[2])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_hostile_operator_cannot_act_on_the_terminal(width: int) -> None:
    rows = pa.table(
        {"operator": ["\x1b]0;owned\x07\x1b[2Jaten::mm\u202e\n[bold]x[/bold]"], "live_bytes_at_peak": [4]}
    )
    lines, _ = drawn(rows, columns.ops(), width)
    assert len(lines) == 2
    assert not set("".join(lines)) & set("\x1b\x07\u202e")
    assert "\\x1b]0;owned" in lines[1]


def test_columns_that_a_result_lacks_are_passed_over() -> None:
    rows = pa.table({"line": ["train.py:3"], "live_bytes_at_time": [8]})
    lines, left_out = drawn(rows, columns.ops(), 80)
    assert lines[0].split("  ")[0] == "line"
    assert "alive then" in lines[0]
    assert left_out == []


def test_sql_shows_values_as_they_are() -> None:
    rows = pa.table({"size_bytes": [1 << 30], "ratio": [0.5], "name": [None], "frames": [["a:1 f", "b:2 g"]]})
    lines, _ = drawn(rows, plain_columns(rows), 80)
    assert lines[1].split() == ["1073741824", "0.5", "-", "a:1", "f", "<", "b:2", "g"]


@given(
    st.lists(st.tuples(st.text(max_size=90), st.integers(min_value=0, max_value=2**62)), max_size=4),
    st.integers(min_value=30, max_value=140),
)
def test_no_line_is_wider_than_the_terminal(values: list[tuple[str, int]], width: int) -> None:
    rows = pa.Table.from_pylist(
        [
            {"operator": name, "rank": 3, "live_bytes_at_peak": number, "largest_bytes": number}
            for name, number in values
        ],
        schema=pa.schema(
            [
                ("operator", pa.string()),
                ("rank", pa.int32()),
                ("live_bytes_at_peak", pa.int64()),
                ("largest_bytes", pa.int64()),
            ]
        ),
    )
    lines, _ = drawn(rows, columns.ops(), width)
    assert len(lines) == len(values) + 1
    assert all(cell_len(line) <= width for line in lines)


@given(st.text(max_size=40), st.integers(min_value=2, max_value=30), st.booleans())
def test_a_shortened_cell_fits(cell: str, width: int, keep_end: bool) -> None:
    from rankmem_cli.show.units import safe_text

    cell = safe_text(cell)
    short = shorten(cell, width, keep_end=keep_end)
    assert cell_len(short) <= width
    assert short == cell or "…" in short


def every_table() -> list[tuple[str, list[Column]]]:
    return [
        ("sessions", columns.sessions()),
        ("ranks", columns.ranks(START_NS)),
        ("hosts", columns.hosts()),
        ("peak", columns.peak(START_NS)),
        ("job_peak", columns.job_peak(START_NS)),
        ("live", columns.live(START_NS)),
        ("ops", columns.ops()),
        ("summary", columns.summary(START_NS, is_delivered=True)),
    ]


@pytest.mark.parametrize(("name", "shown"), every_table())
@pytest.mark.parametrize("width", WIDTHS)
def test_every_table_fits_with_large_values(name: str, shown: list[Column], width: int) -> None:
    values: dict[str, Any] = {}
    for column in shown:
        if column.name == "complete":
            values[column.name] = True
        else:
            values[column.name] = START_NS + 10**13 if column.numeric else "a-rather-long-text-of-some-kind"
    lines, left_out = drawn(pa.Table.from_pylist([values]), shown, width)
    assert all(cell_len(line) <= width for line in lines)
    assert len(shown) - len(left_out) >= (3 if width >= 80 else 2), "too little is left to tell anything"
