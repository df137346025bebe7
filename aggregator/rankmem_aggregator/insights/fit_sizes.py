"""Which sizes of the input were recorded, and which are asked for.

Stage: insights. In: the steps of one or more recordings, and what the user calls their sizes. Out:
:class:`Recorded`, a steady step of each size. How large a step's input was is what the model was given in it
(``step_input``), or the blocks of category input, where a recording does not have that.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.input_shapes import Inputs, numbers_of
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.windows import Place, StepSize, Window, read_window
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
    """Of its input: its number, else its bytes."""
    number: int | None
    """The batch or length, by what the user says or by the recorded shapes; None: neither says it."""
    input_bytes: int
    """Of its input."""
    source: int = 0
    """Place of its recording among those that were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A size that is asked for."""

    size: float
    number: int | None
    times: float
    """Of the largest recorded."""


SizeOf = Callable[[StepSize], int | None]
"""How large a step's input was, in bytes: any figure that is proportional to its batch and to its length;
None: not known."""


def size_by(steps: Iterable[StepSize]) -> SizeOf:
    """What is given to the model, where all steps have that; otherwise the blocks of category input.

    Where some have it, as with RANKMEM_STEADY, a step without such blocks is one of unknown size, and what is
    given to the model counts where no step has them.
    """
    named = [step for step in steps if step.is_named]
    known = [step.call_bytes is not None for step in named]
    if all(known):
        return lambda step: step.call_bytes or 0
    if not any(known):
        return lambda step: step.input_bytes
    if any(step.input_bytes for step in named):
        return lambda step: step.input_bytes or None
    return lambda step: step.call_bytes


def steady(steps: Sequence[StepSize], size_of: SizeOf | None = None) -> list[StepSize]:
    """The last steady step of each size: its step before had the same size, and it is not the first.

    What the step before left behind then has the size, too. Operators are known of both.
    """
    size_of = size_of or size_by(steps)
    found: dict[int, StepSize] = {}
    for before, step in itertools.pairwise(steps):
        if not (before.is_named and step.is_named):
            continue
        size = size_of(step)
        if size is not None and (size_of(before) == size or len(steps) == 2):
            found[size] = step
    return [found[size] for size in sorted(found)]


def read_sizes(
    sources: Sequence[tuple[Ask, Place, Sequence[StepSize]]], numbers: Sequence[int], what: str = "batch"
) -> list[Recorded]:
    """A step of each size, the smallest first.

    Args:
        sources: the recordings, each with its steps; of a size that several have, the first one's step is
            taken.
        numbers: what the user calls the sizes, the smallest first; empty where nobody said.
        what: batch or length.

    Raises:
        CannotTell: no step is steady, its blocks are not known, or the sizes differ in something else.
        RankmemError: INVALID for numbers that are not those of the recorded sizes.
    """
    size_of = size_by(step for _, _, steps in sources for step in steps)
    found: dict[int, tuple[int, StepSize]] = {}
    for source, (_, _, steps) in enumerate(sources):
        for step in steady(steps, size_of):
            found.setdefault(size_of(step) or 0, (source, step))
    if not found:
        raise CannotTell(
            "no two steps in a row have inputs of the same size, so none is steady: record two steps of "
            "each size"
        )
    sizes = sorted(found)
    if len(numbers) > 1 and sizes == [0]:
        raise CannotTell(
            "what the model was given is known of no step, so the sizes of --recorded cannot be told apart: "
            "imported without calls, or RANKMEM_DETAIL=events"
        )
    if numbers:
        _check_numbers(sizes, numbers)
    elif len(sizes) > 1 and sizes[0] == 0:
        raise CannotTell("steps without blocks of category input cannot be compared: say --recorded A,B")
    own = numbers or numbers_of([_inputs(sources, size_of, found[size][1], size) for size in sizes], what)
    recorded = []
    for place_of_size in _spread(len(sizes)):
        source, step = found[sizes[place_of_size]]
        number = own[place_of_size] if own else None
        recorded.append(
            Recorded(
                window=read_window(*sources[source][:2], step),
                size=number or sizes[place_of_size] or 1,
                number=number,
                input_bytes=sizes[place_of_size],
                source=source,
            )
        )
    return recorded


def _inputs(
    sources: Sequence[tuple[Ask, Place, Sequence[StepSize]]], size_of: SizeOf, step: StepSize, size: int
) -> Inputs | None:
    """The shapes that a step's model was given; where they are not recorded, those of all steps of its size,
    if these have the same."""
    if step.call_bytes is not None:
        return step.inputs
    same = [each for _, _, steps in sources for each in steps if size_of(each) == size]
    known = [each.inputs for each in same if each.call_bytes is not None]
    return known[0] if known and all(each == known[0] for each in known) else None


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
            sizes = ", ".join(bytes_text(each.input_bytes) for each in recorded)
            raise CannotTell(
                f"which size {text} is cannot be told: the recorded inputs have {sizes}, and nobody said "
                "what batch or length that is. Say it with --recorded, or ask for a multiple such as 2x"
            )
        else:
            found.append(Wanted(size=number, number=int(number), times=number / largest.size))
    return found
