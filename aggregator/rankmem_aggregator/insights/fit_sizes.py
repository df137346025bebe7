"""Which sizes of the input were recorded, and which are asked for.

Stage: insights. In: the steps of one or more recordings, and what the user calls their sizes. Out:
:class:`Recorded`, a steady step of each size. :func:`size_of` alone says how large a step's input was.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.windows import Place, StepSize, Window, read_window, step_sizes
from rankmem_aggregator.quantity_text import bytes_text, counted
from rankmem_protos.errors import Code, RankmemError

SIZES_MAX: Final = 6
"""Sizes that are compared, of those recorded: the smallest, the largest and some between."""
RATIO_WITHIN: Final = 0.1
"""So far from 1 or 2 may the exponent be with which the inputs' bytes follow what the user calls their
sizes."""
_WANTED: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<times>x?)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A steady step of one size."""

    window: Window
    size: float
    """Of its input: what the user calls it, else its bytes."""
    number: int | None
    """What the user calls it; None where nobody said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A size that is asked for."""

    size: float
    number: int | None
    times: float
    """Of the largest recorded."""


def size_of(step: StepSize) -> int:
    """How large a step's input was: any figure that is proportional to its batch and to its length."""
    return step.input_bytes


def steady(steps: Sequence[StepSize]) -> list[StepSize]:
    """The last steady step of each size: its step before had the same size, and it is not the first.

    What the step before left behind then has the size, too.
    """
    found: dict[int, StepSize] = {}
    for before, step in itertools.pairwise(steps):
        if size_of(before) == size_of(step) or len(steps) == 2:
            found[size_of(step)] = step
    return [found[size] for size in sorted(found)]


def read_sizes(sources: Sequence[tuple[Ask, Place]], numbers: Sequence[int]) -> list[Recorded]:
    """A step of each size, the smallest first.

    Args:
        sources: the recordings; of a size that several have, the first one's step is taken.
        numbers: what the user calls the sizes, the smallest first; empty where nobody said.

    Raises:
        CannotTell: no step is steady, or its blocks are not known.
        RankmemError: INVALID for numbers that are not those of the recorded sizes.
    """
    found: dict[int, tuple[Ask, Place, StepSize]] = {}
    for ask, place in sources:
        for step in steady(step_sizes(ask, place)):
            found.setdefault(size_of(step), (ask, place, step))
    if not found:
        raise CannotTell(
            "no two steps in a row have inputs of the same size, so none is steady: record two steps of "
            "each size"
        )
    sizes = sorted(found)
    if numbers:
        _check_numbers(sizes, numbers)
    elif len(sizes) > 1 and sizes[0] == 0:
        raise CannotTell("steps without blocks of category input cannot be compared: say --recorded A,B")
    chosen = _spread(len(sizes))
    recorded = []
    for place_of_size in chosen:
        ask, place, step = found[sizes[place_of_size]]
        number = numbers[place_of_size] if numbers else None
        recorded.append(
            Recorded(
                window=read_window(ask, place, step), size=number or step.input_bytes or 1, number=number
            )
        )
    return recorded


def _spread(number: int) -> list[int]:
    if number <= SIZES_MAX:
        return list(range(number))
    return sorted({round(part * (number - 1) / (SIZES_MAX - 1)) for part in range(SIZES_MAX)})


def _check_numbers(sizes: Sequence[int], numbers: Sequence[int]) -> None:
    """The numbers that the user gave are those of the sizes that were found."""
    texts = ", ".join(bytes_text(size) for size in sizes)
    if len(sizes) != len(numbers) or sorted(set(numbers)) != list(numbers) or min(numbers) < 1:
        raise RankmemError(
            Code.INVALID,
            f"steady steps of {counted(len(sizes), 'size')} were recorded, with inputs of {texts}; "
            "--recorded has "
            f"{', '.join(map(str, numbers))}",
            "say the batch or length of each, the smallest first: --recorded 2,4",
        )
    for (small, large), (one, other) in zip(
        itertools.pairwise(sizes), itertools.pairwise(numbers), strict=True
    ):
        power = math.log(large / max(small, 1)) / math.log(other / one)
        if small and min(abs(power - 1), abs(power - 2)) > RATIO_WITHIN:
            raise RankmemError(
                Code.INVALID,
                f"--recorded has {one} and {other}, but the inputs of these steps are {bytes_text(small)} "
                "and "
                f"{bytes_text(large)}",
                "say the batch or length of each recorded size, the smallest first",
            )


def wanted_of(texts: Sequence[str], recorded: Sequence[Recorded]) -> list[Wanted]:
    """The sizes that are asked for, in the order given.

    Args:
        texts: numbers, or multiples of the largest recorded size: ``2x``.

    Raises:
        CannotTell: a number is asked for, and nobody said what the recorded sizes are.
        RankmemError: INVALID for what is neither.
    """
    largest = recorded[-1]
    found = []
    for text in texts:
        match = _WANTED.fullmatch(text.strip())
        number = float(match["number"]) if match else 0.0
        if match is None or number <= 0 or (not match["times"] and number != int(number)):
            raise RankmemError(
                Code.INVALID, f"{text!r} is no size", "16, or 2x for twice the largest recorded"
            )
        if match["times"]:
            whole = largest.number is not None and (largest.number * number).is_integer()
            named = int((largest.number or 0) * number) if whole else None
            found.append(Wanted(size=largest.size * number, number=named, times=number))
        elif largest.number is None:
            sizes = ", ".join(bytes_text(each.window.size.input_bytes) for each in recorded)
            raise CannotTell(
                f"which size {text} is cannot be told: the recorded inputs have {sizes}, and nobody said "
                "what "
                "batch or length that is. Say it with --recorded, or ask for a multiple such as 2x"
            )
        else:
            found.append(Wanted(size=number, number=int(number), times=number / largest.size))
    return found
