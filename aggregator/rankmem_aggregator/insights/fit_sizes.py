"""Which sizes of the input were recorded, and which are asked for.

Stage: insights. In: the steps of one or more recordings, and what the user calls their sizes. Out:
:class:`Recorded`, a steady step of each size. How large a step's input was is what the model was given in it
(``step_input``), or the blocks of category input, where a recording does not have that.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.input_shapes import (
    COUNTED,
    Inputs,
    batch_by_places,
    first_dimensions,
    inputs_text,
    may_be_second,
    numbers_of,
)
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.windows import Place, StepSize, Window, read_window
from rankmem_aggregator.quantity_text import bytes_text, counted
from rankmem_protos.errors import Code, RankmemError

SIZES_MAX: Final = 6
"""Sizes that are compared, of those recorded: the smallest, the largest and some between."""
RATIO_WITHIN: Final = 0.1
"""So far from 1 or 2 may the exponent be with which the inputs' bytes follow what the user calls their
sizes."""
RECENT_STEPS: Final = 8
"""Of a size, among which the usual one is looked for: a training may have changed before."""
DIFFERING_SHARE: Final = 0.05
"""Of what a step allocates: steps of one size that differ by more are not the same program."""
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
    allocated_bytes: tuple[int, int] = (0, 0)
    """What steady steps of this size allocated, at least and at most."""


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
Key = tuple[int, tuple[int, ...]]
"""The bytes of a step's input, and the first dimension of each of its tensors, where these are known."""
KeyOf = Callable[[StepSize], Key | None]
"""What tells the sizes of steps apart; None: not known."""


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


def key_by(steps: Iterable[StepSize]) -> KeyOf:
    """What tells the sizes of these steps apart.

    Beside the bytes the first dimensions, where the shapes of all are known: buckets of as many words have
    the same bytes.
    """
    named = [step for step in steps if step.is_named]
    size_of = size_by(named)
    has_shapes = all(step.inputs is not None for step in named)

    def key_of(step: StepSize) -> Key | None:
        size = size_of(step)
        if size is None:
            return None
        return (size, first_dimensions(step.inputs or ()) if has_shapes else ())

    return key_of


def steady(steps: Sequence[StepSize], key_of: KeyOf | None = None) -> list[StepSize]:
    """The usual steady step of each size: its step before had the same size, and it is not the first.

    What the step before left behind then has the size, too. Operators are known of both.
    """
    found = _steady_of(steps, key_of or key_by(steps))
    return [usual(found[key]) for key in sorted(found)]


def _steady_of(steps: Sequence[StepSize], key_of: KeyOf) -> dict[Key, list[StepSize]]:
    """The steady steps of each size, the latest ones."""
    found: dict[Key, list[StepSize]] = {}
    for before, step in itertools.pairwise(steps):
        if not (before.is_named and step.is_named):
            continue
        key = key_of(step)
        if key is not None and (key_of(before) == key or len(steps) == 2):
            found.setdefault(key, []).append(step)
    return {key: of_key[-RECENT_STEPS:] for key, of_key in found.items()}


def usual(steps: Sequence[StepSize]) -> StepSize:
    """One with the commonest peak, of equals what allocated least, the last; of unique peaks the highest.

    The very last step may hold less than any other, since no batch is loaded ahead in it. What allocates more
    under the same peak evaluates beside.
    """
    known = [step for step in steps if step.peak_bytes is not None] or steps
    counts = Counter(step.peak_bytes for step in known)
    most = max(counts.values())
    if most == 1:
        return max(known, key=lambda step: (step.peak_bytes or 0, step.to_seq))
    common = [step for step in known if counts[step.peak_bytes] == most]
    return min(common, key=lambda step: (step.allocated_bytes or 0, -step.to_seq))


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
    steps_of_all = [step for _, _, steps in sources for step in steps]
    size_of, key_of = size_by(steps_of_all), key_by(steps_of_all)
    found: dict[int, tuple[int, StepSize, list[int]]] = {}
    keys: dict[int, Key] = {}
    for source, (_, _, steps) in enumerate(sources):
        for key, of_key in sorted(_steady_of(steps, key_of).items()):
            step = usual(of_key)
            allocated = [each.allocated_bytes for each in of_key if each.allocated_bytes is not None]
            first, like, others = found.setdefault(key[0], (source, step, allocated))
            if keys.setdefault(key[0], key) != key:
                shapes = " and ".join(inputs_text(each.inputs or ()) for each in (like, step))
                raise CannotTell(
                    f"recorded steps whose inputs have as many bytes have other shapes: {shapes}; record "
                    f"sizes that differ in the {what} alone"
                )
            if first != source:
                _refuse_unlike(others, allocated, key[0])
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
    inputs = [_inputs(sources, size_of, found[size][1], size) for size in sizes]
    own = numbers or numbers_of(inputs, what, found[sizes[0]][1].call_bytes)
    recorded = []
    for place_of_size in _spread(len(sizes)):
        source, step, allocated = found[sizes[place_of_size]]
        window = read_window(*sources[source][:2], step)
        number = own[place_of_size] if own else None
        if len(sizes) == 1 and number is None and what == "batch":
            number = _by_places(window)
        recorded.append(
            Recorded(
                window=window,
                size=number or sizes[place_of_size] or 1,
                number=number,
                input_bytes=sizes[place_of_size],
                source=source,
                allocated_bytes=(min(allocated, default=0), max(allocated, default=0)),
            )
        )
    return recorded


def _refuse_unlike(ones: Sequence[int], others: Sequence[int], size: int) -> None:
    """Raises CannotTell where steps of two recordings, with inputs of one size, are not the same.

    Args:
        ones, others: what the steady steps of either allocate.
        size: of their inputs.
    """
    if not ones or not others:
        return
    low, high = sorted([(min(ones), max(ones)), (min(others), max(others))])
    if high[0] <= (1 + DIFFERING_SHARE) * low[1]:
        return
    allocates = f"a step allocates {bytes_text(low[1])} in one and {bytes_text(high[0])} in the other"
    if not size:
        raise CannotTell(
            f"two of the recordings do not show what a step is given, and {allocates}: their sizes cannot be "
            "told apart, as where the largest module is frozen and not the one that is trained"
        )
    raise CannotTell(
        f"in two of the recordings the model was given as much, {bytes_text(size)} in a step, but {allocates}"
        ": the programs differ, or the model is not given what grows, as where a frozen module before it "
        "pools its outputs"
    )


def _by_places(window: Window) -> int | None:
    """The batch of the only size, where what forward made shows which dimension it is."""
    inputs, call_bytes = window.size.inputs, window.size.call_bytes
    if not inputs or not may_be_second(inputs, call_bytes):
        return None
    made = zip(window.operator, window.module, window.bytes.tolist(), strict=True)
    is_meant = [
        phase == "forward" or (place < window.num_older and operator == COUNTED)
        for place, (phase, operator) in enumerate(zip(window.phase, window.operator, strict=True))
    ]
    return batch_by_places(inputs, itertools.compress(made, is_meant))


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
                f"what batch or length that is{_either(recorded)}. Say it with --recorded, or ask for a "
                "multiple such as 2x"
            )
        else:
            found.append(Wanted(size=number, number=int(number), times=number / largest.size))
    return found


def _either(recorded: Sequence[Recorded]) -> str:
    """That either dimension of the only recorded input may be the batch, or what several inputs are."""
    size = recorded[0].window.size
    if len(recorded) > 1:
        inputs = [each.window.size.inputs for each in recorded[:2]]
        return f": {' and '.join(inputs_text(each or ()) for each in inputs)}" if all(inputs) else ""
    if not size.inputs or not may_be_second(size.inputs, size.call_bytes):
        return ""
    return f": the first or the second dimension of {inputs_text(size.inputs)}"
