"""The spool's layout: the structs fit, and their fields do not overlap."""

from __future__ import annotations

import pytest

from rankmem_agent.spool import layout


@pytest.mark.parametrize(("name", "fields", "size"), layout.STRUCTS, ids=lambda value: str(value)[:20])
def test_fields_follow_each_other_aligned_and_within_the_struct(
    name: str, fields: tuple[layout.Field, ...], size: int
) -> None:
    end = 0
    for field in fields:
        width = layout.TYPE_BYTES[field.ctype]
        assert field.offset >= end, f"{name}.{field.name} overlaps the field before"
        assert field.offset % min(width, 8) == 0, f"{name}.{field.name} is not aligned"
        end = field.offset + width
    assert end <= size


def test_marks_are_never_zero_and_differ_between_rounds_of_a_reused_page() -> None:
    assert layout.mark_of(0) != 0
    assert layout.mark_of(2**31) == layout.mark_of(0)
    assert layout.mark_of(layout.RECORDS_PER_SEGMENT) != layout.mark_of(0)


def test_counters_that_different_sides_write_never_share_a_cache_line() -> None:
    line = {field.name: field.offset // 64 for field in layout.CONTROL_FIELDS}
    assert line["next_seq"] != line["dropped"]
    assert line["acked_seq"] not in {line["next_seq"], line["dropped"], line["heartbeat_ns"]}
