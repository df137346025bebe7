"""The stages, and the checks of each, the most valuable first: time may end before they do."""

from __future__ import annotations

import importlib
from typing import Final

from gpu.checks import Check

STAGES: Final = ("works", "exact", "meaning", "cost", "history", "source", "steady")
"""Each a module with CHECKS."""


def checks_of(stage: str) -> tuple[Check, ...]:
    """The checks of a stage, in order."""
    found: tuple[Check, ...] = importlib.import_module(f"gpu.{stage}").CHECKS
    return found


def check_named(text: str) -> tuple[str, Check]:
    """The stage and check of ``STAGE/CHECK``; ValueError where there is none."""
    stage, _, name = text.partition("/")
    for check in checks_of(stage) if stage in STAGES else ():
        if check.name == name:
            return stage, check
    raise ValueError(f"there is no check {text}")


def chosen(words: list[str]) -> list[tuple[str, Check]]:
    """Checks by names of stages (all of it) or ``STAGE/CHECK``, in the order given.

    Raises:
        ValueError: an unknown name.
    """
    found: list[tuple[str, Check]] = []
    for word in words:
        if word in STAGES:
            found += [(word, check) for check in checks_of(word)]
        else:
            found.append(check_named(word))
    return found
