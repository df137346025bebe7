"""The curve of characters fits its width, shows the shortest peak, and does without Unicode where it must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.plots.curves import Chart, Series
from rankmem_cli.show.curve import ASCII, BLOCKS, HEIGHT, PLOT_MIN, draw, glyphs_for
from rankmem_cli.show.units import NS_PER_S

START = 1_700_000_000 * NS_PER_S


def chart(times_s: list[float], stacked: bool = True, **curves: list[int]) -> Chart:
    series = tuple(
        Series(name=name, values_bytes=np.array(values, np.int64)) for name, values in curves.items()
    )
    times_ns = START + np.array([round(second * NS_PER_S) for second in times_s], np.int64)
    return Chart(title="t", times_ns=times_ns, start_ns=START, series=series, stacked=stacked)


def drawn(given_chart: Chart, width: int = 60, glyphs: object = BLOCKS) -> list[str]:
    return [line.plain for line in draw(given_chart, width=width, glyphs=glyphs)]  # type: ignore[arg-type]


def plot(lines: list[str]) -> list[str]:
    return [line.split("┤" if "┤" in line else "│", 1)[1] for line in lines[:HEIGHT]]


def test_a_step_is_drawn_as_a_step() -> None:
    lines = drawn(chart([0, 5, 10], held=[HEIGHT, HEIGHT // 2, 0]))
    cells = plot(lines)
    width = len(lines[HEIGHT].split("└")[1])
    half = width // 2
    for row in range(HEIGHT // 2):
        assert cells[row].ljust(width)[: half - 1] == "█" * (half - 1)
        assert cells[row].ljust(width)[half + 1 :].strip() == ""
    for row in range(HEIGHT // 2, HEIGHT):
        assert cells[row].ljust(width)[: width - 1] == "█" * (width - 1)


def test_a_peak_of_a_nanosecond_reaches_the_top() -> None:
    spike = chart([0, 50, 50 + 1e-9, 100], held=[1, 1 << 30, 1, 1])
    assert plot(drawn(spike))[0].count("█") == 1


def test_what_holds_little_is_seen_and_what_holds_nothing_is_not() -> None:
    little = plot(drawn(chart([0, 1, 2], held=[1 << 40, 1, 1])))
    assert little[-1].rstrip()[-1] == "▁"
    assert plot(drawn(chart([0, 1], held=[0, 0]))) == [""] * HEIGHT


def test_the_axes_tell_bytes_and_offsets() -> None:
    lines = drawn(chart([10, 90], held=[3 << 30, 0]), width=100)
    assert lines[0].startswith("    3.00 GiB ┤")
    assert "    1.50 GiB ┤" in lines[HEIGHT // 2][:14]
    assert "+1:00" in lines[HEIGHT + 1]
    assert "+20 s" in lines[HEIGHT + 1]


@pytest.mark.parametrize(
    ("span_s", "label"),
    [
        (0.000_002, "+0.0000005 s"),
        (0.4, "+0.1 s"),
        (400, "+2:00"),
        (90_000, "+8:00:00"),
        (900_000, "+48:00:00"),
    ],
)
def test_every_span_has_round_labels(span_s: float, label: str) -> None:
    assert label in drawn(chart([0, span_s], held=[1, 1]), width=80)[HEIGHT + 1]


def test_parts_of_a_stack_stand_as_they_lie_and_others_as_they_come() -> None:
    curves = {"parameter": [1, 1], "activation": [2, 2]}
    for stacked, names in ((True, ["activation", "parameter"]), (False, ["parameter", "activation"])):
        lines = drawn(chart([0, 1], stacked=stacked, **curves), width=80)
        assert [line.split()[1] for line in lines if line.startswith("■")] == names


def test_of_measures_of_one_thing_the_first_is_drawn_large() -> None:
    lines = drawn(chart([0, 1], stacked=False, requested=[1 << 20] * 2, reserved=[1 << 30] * 2), width=80)
    assert "1.00 MiB ┤" in lines[0]
    assert any("reserved" in line and "1.00 GiB" in line for line in lines)


@given(
    st.integers(1, 200),
    st.dictionaries(st.text(max_size=60), st.integers(0, 2**62), min_size=1, max_size=5),
    st.sampled_from([BLOCKS, ASCII]),
)
def test_no_line_is_wider_than_the_terminal(width: int, curves: dict[str, int], glyphs: object) -> None:
    given_chart = chart([0, 1, 2], **{name: [value, 0, value // 3] for name, value in curves.items()})
    many = len(curves) > 1
    least = 14 + PLOT_MIN + (14 if many else 0)
    colours = ["#000000"] * len(curves)
    for hues in (None, colours):
        for line in draw(given_chart, width=width, glyphs=glyphs, hues=hues):  # type: ignore[arg-type]
            assert line.cell_len <= max(width, least), line.plain


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", None, "no such"])
def test_without_unicode_ascii_draws(encoding: str | None) -> None:
    assert glyphs_for(encoding) is ASCII
    assert all(line.isascii() for line in drawn(chart([0, 1], a=[1, 2], b=[3, 4]), glyphs=ASCII))


def test_unicode_is_used_where_the_output_carries_it() -> None:
    assert glyphs_for("utf-8") is BLOCKS


def test_colours_change_no_cell_of_a_single_part() -> None:
    one = chart([0, 1, 2, 3], held=[5, 9, 2, 0])
    plain, coloured = draw(one, width=50, glyphs=BLOCKS), draw(one, width=50, glyphs=BLOCKS, hues=["#0072b2"])
    assert [line.plain for line in plain] == [line.plain for line in coloured]


def test_a_name_cannot_act_on_the_terminal() -> None:
    assert not any("\x1b" in line for line in drawn(chart([0, 1], **{"\x1b[2J": [1, 1], "b": [2, 2]})))
