"""Bytes, times and hostile names as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_cli.show import units


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_048_575, "1.00 MiB"),
        (1 << 30, "1.00 GiB"),
        (-(3 << 20), "-3.00 MiB"),
        (2**63 - 1, "8.00 EiB"),
    ],
)
def test_bytes_are_shown_in_powers_of_1024(num_bytes: int | None, text: str) -> None:
    assert units.bytes_text(num_bytes) == text


@given(st.integers(min_value=1024, max_value=2**63 - 1))
def test_shown_bytes_are_within_half_a_hundredth_of_their_unit(num_bytes: int) -> None:
    number, unit = units.bytes_text(num_bytes).split()
    power = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].index(unit)
    assert 1 <= float(number) < 1024
    assert abs(float(number) * 1024**power - num_bytes) <= 0.00501 * 1024**power


@pytest.mark.parametrize(
    ("offset_ns", "text"),
    [
        (0, "+0.000 s"),
        (12_345_678_901, "+12.346 s"),
        (59_999_600_000, "+1:00.000"),
        (123_456_000_000, "+2:03.456"),
        (3_723_456_000_000, "+1:02:03.456"),
        (-5_000_000, "-0.005 s"),
        (None, "-"),
    ],
)
def test_an_offset_is_shown_to_the_millisecond(offset_ns: int | None, text: str) -> None:
    assert units.offset_text(offset_ns) == text


@pytest.mark.parametrize(
    ("age_ns", "text"),
    [
        (350, "350 ns"),
        (999_999, "1 ms"),
        (1_250_000, "1.25 ms"),
        (12_340_000_000, "12.3 s"),
        (123_000_000_000, "2 min 03 s"),
        (12_000_000_000_000, "3 h 20 min"),
        (None, "-"),
    ],
)
def test_a_duration_keeps_about_three_figures(age_ns: int | None, text: str) -> None:
    assert units.age_text(age_ns) == text


def test_an_instant_is_shown_in_utc() -> None:
    assert units.utc_text(1_795_264_702_123_999_999) == "2026-11-21 12:38:22.123"
    assert units.utc_clock_text(1_795_264_702_123_999_999) == "12:38:22.123"


def test_an_instant_beyond_the_calendar_does_not_break_a_table() -> None:
    assert units.utc_text(2**63 - 1).startswith("2262-")
    assert units.utc_text(10**30) == f"{10**30} ns"


def test_control_and_bidi_characters_are_made_visible() -> None:
    hostile = "aten::mm\x1b[2J\x9b31m\u202eevil\n\u2028\U000e0041"
    assert units.safe_text(hostile) == "aten::mm\\x1b[2J\\x9b31m\\u202eevil\\n\\u2028\\U000e0041"


def test_names_of_any_script_stay_as_they_are() -> None:
    assert units.safe_text("Größe::数据 ✓") == "Größe::数据 ✓"


@given(st.text())
def test_safe_text_is_printable_whatever_comes(text: str) -> None:
    assert all(char.isprintable() or char.isspace() for char in units.safe_text(text))
    assert not set(units.safe_text(text)) & set("\x1b\n\r\x07\x9b")
