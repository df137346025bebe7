"""A weak mapping that asks its keys nothing."""

from __future__ import annotations

import gc
from typing import Any

from rankmem_agent.hooks.by_identity import ByIdentity


class Refuses:
    """Raises whatever is done with it."""

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not ask")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare")


def test_nothing_of_an_object_is_called_and_it_is_forgotten_with_it() -> None:
    known: ByIdentity[str] = ByIdentity()
    first, second = Refuses(), Refuses()
    known[first], known[second] = "first", "second"
    known[first] = "again"
    assert (known.get(first, ""), known.get(second, ""), known.get(object(), "none")) == (
        "again",
        "second",
        "none",
    )
    assert first in known
    assert [value for _, value in known.items()] == ["again", "second"]
    del first
    gc.collect()
    assert len(known) == 1
    assert [thing is second for thing in known] == [True]
