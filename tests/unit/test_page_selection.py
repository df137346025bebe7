"""What a link picks: kinds of a closed list, values that may hold anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.page.selection import KINDS, NUMBERS, PICK, PICKS_MAX

TEXTS = [kind for kind in KINDS if kind not in (*NUMBERS, "within")]


def _encoded(value: str) -> str:
    """As encodeURIComponent does it."""
    from urllib.parse import quote

    return quote(value, safe="!'()*-._~")


def test_groups_of_a_kind_are_gathered_in_the_order_of_the_link() -> None:
    assert json.loads(PICK("line:b.py%3A2;category:activation;line:a.py%3A1;line:b.py%3A2")) == {
        "category": ["activation"],
        "line": ["b.py:2", "a.py:1"],
    }


def test_no_pick_is_none() -> None:
    assert PICK(";") is None


@given(
    st.lists(
        st.tuples(st.sampled_from(TEXTS), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
    )
)
def test_any_value_comes_through(picks: list[tuple[str, str]]) -> None:
    given_picks = [(kind, value) for kind, value in picks if "\0" not in value][:PICKS_MAX]
    wanted: dict[str, list[str]] = {}
    for kind, value in given_picks:
        if value not in wanted.setdefault(kind, []):
            wanted[kind].append(value)
    read = PICK(";".join(f"{kind}:{_encoded(value)}" for kind, value in given_picks)[:4096])
    if sum(len(_encoded(value)) + 12 for _, value in given_picks) < 4096:
        assert (json.loads(read) if read else {}) == wanted


@pytest.mark.parametrize(
    "given_text",
    [
        "activation",
        "colour:red",
        "category",
        "block:12a",
        "stack:",
        "line:%ff",
        "category:a%00b",
        "within:a;within:b",
        "line:" + "x" * 1025,
        ";".join("step:1" for _ in range(PICKS_MAX + 1)),
        "category:" + "x" * 5000,
    ],
)
def test_what_cannot_be_a_selection_is_refused(given_text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|characters|groups|kind|percent|one module"):
        PICK(given_text)
