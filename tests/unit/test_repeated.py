"""Groups that a regular expression repeats: right on the oldest CPython that is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankmem_imports.files.repeated import repeated

ROOT = Path(__file__).parents[2]
GROUP = re.compile(r"(?<!\|\(\?!\))\)(?:[*+?]|\{[\d,]+\})\+")
"""A possessive group that does not end with the alternative that never matches."""
PLAIN = re.compile(r"\(\?:(?:\\?[\w.])+\)[*+?]\+")
"""One of single characters alone, which no CPython gets wrong."""


@pytest.mark.parametrize(
    ("item", "text", "end"),
    [
        (rb"ab?c", b"aca", 2),
        (rb"ab?c", b"acabx", 2),
        (rb"\d+,(?!\s*\])", b"1,22,3 ", 5),
        (rb"\s*+\d{1,3}(?:,|(?=\]))", b"1, 2,  34", 5),
        (rb"(?:K.|M..){2};", b"K1K2;M12K", 5),
        (rb"a.{8}", b"a12345678a123", 9),
        (rb"a", b"", 0),
    ],
)
def test_an_item_that_fails_half_way_does_not_count(item: bytes, text: bytes, end: int) -> None:
    match = re.match(repeated(item), text)
    assert match is not None
    assert match.end() == end


def test_what_it_matched_is_not_given_back() -> None:
    assert re.match(repeated(rb"a") + rb"a", b"aaa") is None


def test_no_pattern_repeats_a_group_otherwise() -> None:
    for folder in ("protos", "agent", "aggregator", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = PLAIN.sub("", path.read_text())
            assert [match.group() for match in GROUP.finditer(text)] == [], path
