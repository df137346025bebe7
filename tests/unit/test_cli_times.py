"""A TIME as users write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_cli.args.times import parse_time
from rankmem_cli.show.units import offset_text
from rankmem_protos.errors import Code, RankmemError

START_NS = 1_795_264_702_123_456_789  # 2026-11-21T12:38:22.123456789Z


@pytest.mark.parametrize(
    ("text", "offset_ns"),
    [
        ("12.5s", 12_500_000_000),
        ("+12.5 s", 12_500_000_000),
        ("350ms", 350_000_000),
        ("7us", 7_000),
        ("7µs", 7_000),
        ("9ns", 9),
        ("2min", 120_000_000_000),
        ("2m", 120_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("2:03.456", 123_456_000_000),
        ("+1:02:03.5", 3_723_500_000_000),
        ("0.000000001s", 1),
        ("100000000.000000001s", 100_000_000_000_000_001),
    ],
)
def test_an_offset_counts_from_the_start_of_the_session(text: str, offset_ns: int) -> None:
    assert parse_time(text, session_started_ns=START_NS) == START_NS + offset_ns


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T12:38:22.123456789Z",
        "2026-11-21 12:38:22.123456789",
        "2026-11-21T14:38:22.123456789+02:00",
        "1795264702123456789",
    ],
)
def test_an_instant_keeps_all_nine_digits(text: str) -> None:
    assert parse_time(text, session_started_ns=0) == START_NS


def test_a_time_without_zone_is_utc() -> None:
    assert parse_time("2026-11-21T12:38:22", session_started_ns=0) == START_NS // 10**9 * 10**9


@pytest.mark.parametrize(
    "text", ["", "soon", "12", "1e9", "-5s", "12.5", "2026-13-01T00:00:00", "peak ", "٣s"]
)
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RankmemError) as caught:
        parse_time(text, session_started_ns=START_NS)
    assert caught.value.code is Code.INVALID
    assert "12.5s" in caught.value.hint or f"{text}s" in caught.value.hint


@given(st.integers(min_value=0, max_value=100 * 3600 * 1000))
def test_what_a_table_prints_is_taken_back(offset_ms: int) -> None:
    offset_ns = offset_ms * 1_000_000
    assert parse_time(offset_text(offset_ns), session_started_ns=START_NS) == START_NS + offset_ns
