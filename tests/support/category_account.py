"""A training's own record of its tensors, compared with the database's.

Stage: tests. In: the places, addresses and categories that a script has noted (``category_witness``), and the
blocks as pairing gives them. Out: bytes-over-time by (what the script says, what the database says). A
block's time is counted in records of the log, so that the figures do not move with the machine's load.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from category_oracle import Life

SMALL_BYTES = 64
"""Scalars: the seed of a backward, a count of steps."""
Seen = list[tuple[int, int, str]]


@dataclass(slots=True)
class Account:
    """Bytes-over-time of the blocks that the script has noted."""

    by_meaning: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (what the script says, what the database says at that place of the log)."""
    false_inputs: list[dict[str, Any]] = field(default_factory=list)
    """Blocks that the database calls input in the end and the script never."""

    def share(self, answer: str) -> float:
        """Of what was noted: the share that is right, unknown or wrong."""
        total = sum(self.by_meaning.values())
        answered = sum(weight for pair, weight in self.by_meaning.items() if _answer(*pair) == answer)
        return answered / total if total else 0.0

    def shares_of(self, said: str) -> dict[str, float]:
        """What the database says of what the script says is this."""
        own = {ours: weight for (theirs, ours), weight in self.by_meaning.items() if theirs == said}
        total = sum(own.values())
        return {ours: round(weight / total, 4) for ours, weight in sorted(own.items())}

    def __str__(self) -> str:
        said = sorted({theirs for theirs, _ in self.by_meaning})
        lines = [f"{each}: {self.shares_of(each)}" for each in said]
        return "\n".join([*lines, *(f"input? {row}" for row in self.false_inputs)])


def account_of(seen: Seen, lives: list[Life], last_seq: int) -> Account:
    """Each block once for each category that the script has given it, wrong if it was wrong at any note."""
    answers: dict[tuple[int, str], tuple[int, str]] = {}
    inputs = set()
    finder = _Finder(lives)
    for seq, address, said in seen:
        life = finder.alive_at(seq, address)
        number = life.row["allocation_id"]
        ours = life.at(seq).name.lower()
        freed = last_seq if life.row["freed_seq"] is None else life.row["freed_seq"]
        weight = life.row["size_bytes"] * (freed - number)
        before = answers.get((number, said), (weight, said))[1]
        worse = ours if _badness(said, ours) >= _badness(said, before) else before
        answers[number, said] = (weight, worse)
        if said == "input":
            inputs.add(number)
    account = Account()
    for (_, said), (weight, ours) in answers.items():
        account.by_meaning[said, ours] += weight
    shown = ("allocation_id", "operator", "phase", "size_bytes", "freed_seq")
    account.false_inputs = [
        {name: life.row[name] for name in shown}
        for life in lives
        if life.last() == "input" and life.row["size_bytes"] > SMALL_BYTES
        and life.row["allocation_id"] not in inputs
    ]  # fmt: skip
    return account


def _answer(said: str, ours: str) -> str:
    return "right" if said == ours else "unknown" if ours == "unknown" else "wrong"


def _badness(said: str, ours: str) -> int:
    return ("right", "unknown", "wrong").index(_answer(said, ours))


class _Finder:
    """Blocks by address and time."""

    def __init__(self, lives: list[Life]) -> None:
        self._lives = sorted(lives, key=lambda life: int(life.row["allocation_id"]))
        rows = [life.row for life in self._lives]
        self._begin = np.array([row["allocation_id"] for row in rows])
        self._end = np.array([2**62 if row["freed_seq"] is None else row["freed_seq"] for row in rows])
        self._first = np.array([row["address"] for row in rows], np.uint64)
        self._size = np.array([row["size_bytes"] for row in rows], np.uint64)

    def alive_at(self, seq: int, address: int) -> Life:
        """The block that the address lies in at that place."""
        inside = (self._begin < seq) & (self._end >= seq)
        inside &= (self._first <= address) & (np.uint64(address) < self._first + self._size)
        (place,) = np.flatnonzero(inside)
        return self._lives[place]
