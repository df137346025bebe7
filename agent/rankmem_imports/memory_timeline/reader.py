"""Memory timelines of ``torch.profiler``: bytes by category over time, of one device.

Stage: readers; the process of ``rankmem import``. In: what ``export_memory_timeline`` writes:
``.raw.json.gz``, each change; ``.json`` and ``.json.gz``, the totals at each microsecond (torch 2.1: at
each nanosecond, as numbers with a fraction of 0). Out: the parts of one rank. Such a file has no rank, no
device, no address and no operator, and its frees name no block: the oldest of the size and category is
taken, which is right for every total. A file of totals has no blocks at all: each change of a category's
total is one, and a fall takes blocks of the same size or parts of others.

Source: torch/profiler/_memory_profiler.py (2.1, 2.13), export_memory_timeline and export_memory_timeline_raw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rankmem_agent.spool.layout import Category
from rankmem_imports.files.number_lists import NumberLists
from rankmem_imports.memory_timeline import recognition
from rankmem_imports.memory_timeline.category_blocks import CategoryBlocks
from rankmem_imports.probing import probe
from rankmem_imports.recording import Closing, Identity, Part, RankFacts, RankRecording
from rankmem_imports.replay import RESERVED, Replay
from rankmem_protos.categories import TIMELINE_INDEX
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.plain_errors import plain

CATEGORIES: Final = tuple(Category[name.upper()] for name in TIMELINE_INDEX)
"""In the order of the files: torch's ``_CATEGORY_TO_INDEX``, not its enum."""
PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = 1, 2, 3, 4
"""torch's ``_ACTION_TO_INDEX``."""

NANOSECONDS_LEAST: Final = 10**17
"""Times from here on are nanoseconds, as torch 2.1 has them: as such after 1973, as microseconds in 5138."""

_MISSING_COLUMNS: Final = RESERVED | {"address", "stream", "thread"}
_TOTALS: Final = len(CATEGORIES) + 1


def open_ranks(files: Sequence[Path]) -> Sequence[RankRecording]:
    """The one rank."""
    (path,) = files
    return (TimelineRecording(path),)


class TimelineRecording:
    """One timeline."""

    def __init__(self, path: Path) -> None:
        self.source = path
        self.facts = RankFacts()
        self._closing = Closing(events=0)

    def parts(self, identity: Identity) -> Iterator[Part]:
        """Its changes, or those of its totals."""
        replay = Replay(identity, missing_columns=_MISSING_COLUMNS, constants={"device": "unknown"})
        blocks = CategoryBlocks(replay)
        with NumberLists(self.source) as text:
            text.take(b"[")
            is_raw = recognition.is_raw(probe(self.source))
            try:
                changes = _raw(text, blocks) if is_raw else _totals(text, blocks)
                for _ in changes:
                    if replay.is_full:
                        yield replay.part()
            except (ValueError, IndexError, OverflowError) as exc:
                raise RankmemError(
                    Code.INVALID,
                    f"{self.source}: not a memory timeline: {plain(exc)}",
                    "export the recording again",
                ) from exc
            text.take(b"]")
            text.end()
        blocks.end()
        yield replay.part(final=True)
        self._closing = Closing(
            events=replay.state.num_events, remarks=_remarks(is_raw, blocks.num_unmatched)
        )

    def closing(self) -> Closing:
        """Nothing to hold the replay against; a profiler's window is not the process's life."""
        return self._closing


def _raw(text: NumberLists, blocks: CategoryBlocks) -> Iterator[None]:
    """Applies each change to the blocks; yields after each."""
    moved_from: tuple[int, int, Category] | None = None
    for rows in text.rows(4):
        for time_ns, action, change, index in rows.tolist():
            category = CATEGORIES[index]
            if action == INCREMENT_VERSION and change <= 0 and moved_from is None:
                moved_from = (time_ns, -change, category)
                continue
            if action == INCREMENT_VERSION and moved_from is not None:
                if moved_from[:2] != (time_ns, change):
                    raise ValueError(f"a version of {change} bytes follows one of {moved_from[1]}")
                blocks.become(time_ns, change, moved_from[2], category)
                moved_from = None
            elif action == PREEXISTING and change >= 0:
                blocks.older(change, category)
            elif action == CREATE and change >= 0:
                blocks.make(time_ns, change, category)
            elif action == DESTROY and change <= 0:
                blocks.free(time_ns, -change, category)
            else:
                raise ValueError(f"action {action} with {change} bytes")
            yield


def _totals(text: NumberLists, blocks: CategoryBlocks) -> Iterator[None]:
    """Applies the changes of the totals to the blocks."""
    text.take(b"[")
    times = [time_us for some in text.numbers() for time_us in some.tolist()]
    unit_ns = 1 if max(times, default=0) >= NANOSECONDS_LEAST else 1_000
    text.take(b"]")
    text.take(b",")
    text.take(b"[")
    before = [0] * _TOTALS
    count = 0
    for rows in text.rows(_TOTALS):
        for totals in rows.tolist():
            if count >= len(times):
                raise ValueError(f"more rows of totals than its {len(times)} times")
            blocks.move(
                times[count] * unit_ns,
                [
                    (after - was, category)
                    for after, was, category in zip(totals[1:], before[1:], CATEGORIES, strict=True)
                ],
            )
            before = totals
            count += 1
            yield
    if count != len(times):
        raise ValueError(f"{count} rows of totals for {len(times)} times")
    text.take(b"]")


def _remarks(is_raw: bool, num_unmatched: int) -> tuple[str, ...]:
    found = ["the file names no device, no address and no operator"]
    if is_raw:
        found.append("a free names no block: the oldest of its size and category was taken")
    else:
        found.append("the file has only totals: its blocks are their changes")
    if num_unmatched:
        found.append(f"{num_unmatched} changes are of blocks that the file never made")
    return tuple(found)
