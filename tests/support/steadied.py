"""Runs one of steady_trainings twice: fully observed, and with calls unobserved in steps that are known.

``python steadied.py [TRAINING ...]`` prints the comparison of each. Both runs have the same seed, so the
blocks of each thread are the same ones in the same order, and every column of a block can be held against
the other run's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from recorded_models import paired_rows
from shadowed import IDENTITY, blocks_of, recorded_steps, say_each

Row = dict[str, Any]
AUDITS_EVERY: Final = 50
STEPS: Final = 120


@dataclass(slots=True, kw_only=True)
class Steadied:
    """The blocks of a training, by what the steady run knows each."""

    known_by: Counter[str] = field(default_factory=Counter)
    wrong: Counter[tuple[str, str, Any, Any]] = field(default_factory=Counter)
    """(attribution, column, steady, observed), where the steady run says something else and is not silent."""
    silent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(attribution, column), where it says nothing and the other one something."""
    either: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(attribution, column), where it says "a or b", of which one was observed."""
    more: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The other way round."""


def steadied(
    training: str, folder: Path, steps: int, audits_every: int = AUDITS_EVERY, device: str = "cpu"
) -> Steadied:
    """Trains in ``folder``, on ``cpu`` or ``cuda``, and compares."""
    runs = []
    for name, every in (("observed", 0), ("steady", audits_every)):
        own = folder / name
        own.mkdir()
        runs.append(_by_thread(paired_rows(recorded_steps(training, own, steps, device, every))))
    observed, steady = runs
    if len(observed[0]) != len(steady[0]):
        raise RuntimeError(f"other blocks: {len(observed[0])} and {len(steady[0])}")
    found = Steadied()
    for of_thread, of_steady in zip(observed, steady, strict=False):
        if len(of_thread) != len(of_steady):  # who of a collective's threads does what is a race
            continue
        for then, now in zip(of_thread, of_steady, strict=True):
            _compare(found, then, now)
    return found


def killed(training: str, folder: Path, lives_ms: int, observed: Sequence[Row]) -> Steadied:
    """Trains until it is killed, and holds the trainer's blocks against those of a run that was observed; but
    for categories, which the steps that never came would tell."""
    tables = paired_rows(recorded_steps(training, folder, 1 << 20, "cpu", AUDITS_EVERY, lives_ms))
    found = Steadied()
    for then, now in zip(observed, _by_thread(tables)[0], strict=False):
        _compare(found, then, now | {"category": then["category"]})
    return found


def observed_blocks(training: str, folder: Path, steps: int) -> list[Row]:
    """The blocks of the trainer's thread, fully observed."""
    return _by_thread(paired_rows(recorded_steps(training, folder, steps)))[0]


def _by_thread(tables: Any) -> list[list[Row]]:
    """The rows of each thread's blocks in their order, threads by their first block."""
    rows = blocks_of(tables)
    threads: dict[int, list[Row]] = {}
    events = tables["memory_event"]
    for block, thread, action in zip(
        events["allocation_id"].to_pylist(),
        events["thread"].to_pylist(),
        events["action"].to_pylist(),
        strict=True,
    ):
        if action == "alloc":
            threads.setdefault(thread, []).append(rows[block])
    return list(threads.values())


def _compare(found: Steadied, then: Row, now: Row) -> None:
    by = str(now["attribution"])
    found.known_by[by] += 1
    for column in (*IDENTITY, "category", "annotation", "step", "size_bytes"):
        said, seen = now[column], then[column]
        if said == seen:
            continue
        nothing = "unknown" if column == "category" else None
        if said == nothing or (column == "recomputed" and by in ("none", "evidence")):
            found.silent[by, column] += 1
        elif seen == nothing:
            found.more[by, column] += 1
        elif isinstance(said, str) and seen in said.split(" or "):
            found.either[by, column] += 1
        elif (
            column != "category" or then["freed_seq"] is not None
        ):  # of what lives on, a later step would tell
            found.wrong[by, column, said, seen] += 1


def report(name: str, found: Steadied) -> str:
    """A line, and one for each kind of difference."""
    known = ", ".join(f"{by} {count}" for by, count in found.known_by.most_common())
    lines = [f"{name}: {known}; wrong {sum(found.wrong.values())}, silent {sum(found.silent.values())}"]
    for title, kinds in (("wrong", found.wrong), ("silent", found.silent), ("more", found.more)):
        lines += [f"    {title} {count} {what}" for what, count in kinds.most_common(8)]
    return "\n".join(lines)


if __name__ == "__main__":
    say_each(lambda name, folder: report(name, steadied(name, folder, STEPS)))
