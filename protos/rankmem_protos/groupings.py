"""The keys of ``--by``: what answers can be grouped by.

Stage: contract, between the command line, the Python API and the summaries. A new key is added here, in the
Literals of ``rankmem_aggregator.query.types`` and, with its SQL, in ``group_of_block.sql`` (of blocks) or
``rank_group.sql`` (of ranks); ``test_groupings.py`` compares the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rankmem_protos.errors import Code, RankmemError

Question = Literal["ops", "peak", "job-peak", "oom", "timeline", "imbalance"]
"""A verb with ``--by``."""
Of = Literal["blocks", "ranks", "total"]

_EVERY: Final[tuple[Question, ...]] = ("ops", "peak", "job-peak", "oom", "timeline")
_OF_RANKS: Final[tuple[Question, ...]] = ("peak", "timeline")
_OF_BLOCKS: Final[tuple[Question, ...]] = (*_EVERY, "imbalance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """One key of ``--by``."""

    name: str
    words: str = ""
    """For the help; empty: its name."""
    of: Of = "blocks"
    """What a group consists of: blocks of a rank, ranks, or all that one rank holds."""
    questions: tuple[Question, ...] = _OF_BLOCKS
    """The verbs that offer it."""
    needs: tuple[str, ...] = ()
    """Parts of a recording that a job can switch off and that it rests on: operators, stacks, modules."""
    has_summary: bool = False
    """The aggregator keeps the curves of its groups: they are few, and asked for most."""
    of_allocator: bool = False
    """Segments have it too: every figure is known for its groups, not only requested bytes."""


GROUPINGS: Final = {
    grouping.name: grouping
    for grouping in (
        Grouping(name="overall", words="a rank's totals", of="total", questions=("timeline",)),
        Grouping(name="rank", of="ranks", questions=_EVERY),
        Grouping(name="host", of="ranks", questions=_OF_RANKS),
        Grouping(name="device", of="ranks", questions=_OF_RANKS),
        Grouping(name="category", needs=("operators",), has_summary=True),
        Grouping(name="operator", needs=("operators",)),
        Grouping(name="module", needs=("modules",)),
        Grouping(name="line", words="source line", needs=("stacks",)),
        Grouping(name="stream", has_summary=True, of_allocator=True),
        Grouping(name="component", has_summary=True, of_allocator=True),
        Grouping(name="phase", needs=("operators",), has_summary=True),
        Grouping(name="step", words="training step"),
        Grouping(name="annotation", needs=("operators",)),
        Grouping(name="job", words="the whole job", of="ranks", questions=("timeline",)),
        Grouping(name="dp", of="ranks", questions=_OF_RANKS),
        Grouping(name="tp", of="ranks", questions=_OF_RANKS),
        Grouping(name="pp", of="ranks", questions=_OF_RANKS),
        Grouping(name="cp", of="ranks", questions=_OF_RANKS),
        Grouping(name="ep", of="ranks", questions=_OF_RANKS),
    )
}
"""All of them by name, in the order of the help."""
SUMMARIZED: Final = tuple(each.name for each in GROUPINGS.values() if each.has_summary)


def offered(question: Question) -> tuple[Grouping, ...]:
    """The groupings that a verb offers."""
    return tuple(each for each in GROUPINGS.values() if question in each.questions)


def grouping_of(name: str, question: Question) -> Grouping:
    """The grouping of this name.

    Raises:
        RankmemError: INVALID where the verb does not offer it.
    """
    found = GROUPINGS.get(name)
    if found is None or question not in found.questions:
        names = ", ".join(each.name for each in offered(question))
        raise RankmemError(Code.INVALID, f"{question} cannot be grouped by {name}", f"one of {names}")
    return found


def words_of(question: Question, *, of: Of = "blocks") -> str:
    """The groupings of this kind that a verb offers, in words, for its help."""
    *others, last = [each.words or each.name for each in offered(question) if each.of == of]
    return f"{', '.join(others)} or {last}"
