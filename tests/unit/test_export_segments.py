"""Segments of an exported snapshot: which blocks they hold."""

from __future__ import annotations

import pytest

from rankmem_aggregator.exports.snapshot_segments import Segments

PAGE = 2 << 20


def mapped(*pages: int) -> Segments:
    """An expandable segment of which these pages were mapped, one by one."""
    segments = Segments()
    for page in pages:
        segments.apply("segment_map", page * PAGE, PAGE, 0, None)
    return segments


def covers(segments: Segments) -> list[tuple[int, int]]:
    return [(one.address, one.size_bytes) for one in segments.at_end() if one.is_cover]


@pytest.mark.parametrize("first", [4 * PAGE, 4 * PAGE + 512, 5 * PAGE])
def test_a_block_over_several_mapped_pages_needs_no_cover_once_they_are_gone(first: int) -> None:
    segments = mapped(4, 5, 6)
    segments.saw_block(first, 7 * PAGE - first)
    segments.apply("segment_unmap", 4 * PAGE, 3 * PAGE, 0, None)
    assert segments.at_end() == []


def test_a_block_over_a_page_that_is_not_mapped_is_covered() -> None:
    segments = mapped(4, 6)
    segments.saw_block(4 * PAGE, 3 * PAGE)
    segments.saw_block(6 * PAGE, 2 * PAGE)
    assert covers(segments) == [(5 * PAGE, PAGE), (7 * PAGE, PAGE)]


def test_a_block_before_all_segments_is_covered() -> None:
    segments = mapped(4)
    segments.saw_block(PAGE, 512)
    [(address, size_bytes)] = covers(segments)
    assert address <= PAGE
    assert address + size_bytes >= PAGE + 512
