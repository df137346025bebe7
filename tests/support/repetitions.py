"""How often random tests are repeated, and how much of what is alike is asked, by profile.

RANKMEM_TEST_PROFILE names it. ``dev``, unless another is asked for, tries 10 examples, for the inner loop;
``ci`` tries 15, ``long`` 100. ``make test`` and CI run ``ci``, ``make test-long`` runs ``long``.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings

Asked = TypeVar("Asked")
PROFILE: Final = os.environ.get("RANKMEM_TEST_PROFILE", "dev")
_EXAMPLES: Final = {"dev": 10, "ci": 15, "long": 100}
_EXAMPLES_MIN: Final = 3

for _name, _count in _EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=_count,
        deadline=None,  # a loaded machine is no finding
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile(PROFILE)


def examples(factor: float) -> settings:
    """Settings of a test that tries this many times the profile's examples: fewer where each is slow."""
    return settings(max_examples=max(_EXAMPLES_MIN, round(_EXAMPLES[PROFILE] * factor)))


def seeds(count: int) -> range:
    """Seeds for ``parametrize``: ``count`` of them in the profile ``long``."""
    return range(max(1, count * _EXAMPLES[PROFILE] // _EXAMPLES["long"]))


def long_but(values: Iterable[Asked], *kept: Asked) -> list[Any]:
    """All, for ``parametrize``: CI runs those that are kept, ``make test-long`` the others, too."""
    return [pytest.param(value, marks=[] if value in kept else pytest.mark.long) for value in values]


def long_but_one_in(values: Iterable[Asked], one_in: int) -> list[Any]:
    """All, for ``parametrize``, of which CI runs one in so many, always the same: for cases of one kind."""
    every = list(values)
    return long_but(every, *(one for one in every if zlib.crc32(str(one).encode()) % one_in == 0))


def some_of(questions: Iterable[Asked], one_in: int, name: Callable[[Asked], str] = str) -> list[Asked]:
    """All of them in the profile ``long``; else one in so many, always the same ones."""
    if PROFILE == "long":
        return list(questions)
    return [one for one in questions if zlib.crc32(name(one).encode()) % one_in == 0]
