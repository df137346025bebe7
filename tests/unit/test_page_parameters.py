"""Every parameter of a request is read and bounded once; what cannot be used is refused with its value."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rankmem_aggregator.page.parameters import (
    RANK,
    TIME,
    check_range,
    choice,
    integers,
    parameter,
    read_parameters,
    real,
    text,
)
from rankmem_protos.errors import Code, RankmemError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    rank: int = parameter(RANK, "a rank")
    from_ns: int | None = parameter(TIME, "begin", name="from", default=None)
    by: str = parameter(choice(("category", "line")), "grouping", default="category")
    share: float = parameter(real(0, 1), "a share", default=0.0)
    ranks: tuple[int, ...] = parameter(integers(0, 9, at_most=2), "ranks", default=())
    like: str = parameter(text(5), "a text", default="")


def test_parameters_become_the_fields_that_declare_them() -> None:
    asked = read_parameters(_Asked, [("rank", "3"), ("from", "-5"), ("ranks", "1,2"), ("share", "0.25")])
    assert asked == _Asked(rank=3, from_ns=-5, ranks=(1, 2), share=0.25)


def test_an_empty_value_is_that_of_an_absent_parameter() -> None:
    assert read_parameters(_Asked, [("rank", "0"), ("from", "")]) == _Asked(rank=0)


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        ([], "rank is missing"),
        ([("rank", "")], "rank is missing"),
        ([("rank", "-1")], "'-1'"),
        ([("rank", "9" * 40)], "9999"),
        ([("rank", "1e3")], "'1e3'"),
        ([("rank", "٣")], "cannot be used"),
        ([("rank", "1"), ("rank", "2")], "given twice"),
        ([("rank", "1"), ("rang", "2")], "unknown parameter 'rang'"),
        ([("rank", "1"), ("from", str(2**63))], str(2**63)),
        ([("rank", "1"), ("from", "NaN")], "NaN"),
        ([("rank", "1"), ("share", "nan")], "nan"),
        ([("rank", "1"), ("share", "inf")], "inf"),
        ([("rank", "1"), ("share", "1e400")], "1e400"),
        ([("rank", "1"), ("by", "host")], "'host'"),
        ([("rank", "1"), ("ranks", "1,2,3")], "'1,2,3'"),
        ([("rank", "1"), ("ranks", "1,,2")], "'1,,2'"),
        ([("rank", "1"), ("like", "a\0b")], "cannot be used"),
        ([("rank", "1"), ("like", "x" * 100_000)], "…"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_value(pairs: list[tuple[str, str]], word: str) -> None:
    with pytest.raises(RankmemError) as refused:
        read_parameters(_Asked, pairs)
    assert refused.value.code is Code.INVALID
    assert word in refused.value.message
    assert refused.value.hint
    assert len(refused.value.message) < 200


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    check_range(None, 5)
    check_range(4, 5)
    for bounds in ((5, 5), (6, 5)):
        with pytest.raises(RankmemError, match="is empty"):
            check_range(*bounds)
