"""How the sizes of a step's blocks follow the size of its input, and what the step would hold at another.

Stage: insights. In: steps at one or two input sizes. Out: :class:`Model`, which gives every block its bytes
at any input size. The blocks of one step are paired with the same ones of the other (:mod:`align`); what
changes between the two is taken for a line or a power of a line; every block lives as it did. Pure functions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np

from rankmem_aggregator.insights.align import CELLS_MAX, aligned, paired_within_runs
from rankmem_aggregator.insights.evaluations import of_evaluations
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.windows import (
    COMPUTING,
    LASTING,
    OF_STEP,
    STATE,
    Window,
    are_parameters,
    as_large_as_parameters,
    is_of_model,
    may_follow_input,
    peak_of,
)

MATCHED_LEAST: Final = 0.98
"""Of the blocks of either step have one of the other; with fewer the programs differ."""
ODD_SHARE_MAX: Final = 0.05
"""Of the bytes made in the step may grow in no way that has a name; with more the programs differ, as one
with autocast does from one without."""
UNCLEAR_MAX: Final = 3
"""Names of code that could be several, in a reason."""
RESIZED_SHARE_MAX: Final = 0.05
"""Of the parameters' bytes may belong to parameters that have other sizes at another batch."""
LINE_WITHIN: Final = 0.1
"""So far from 1 is the exponent of a line with a small constant, such as length + 1."""
POWER_WITHIN: Final = 0.15
"""So far from 2, 3 or 4 that of such a power of such a line."""
SAME_SHAPE: Final = 1e-9
"""Where the exponent is nearer to 1, nothing is added to a line."""
PADDED_SHARE_MAX: Final = 0.05
"""Of the bytes made in the step may be lines that are no whole number of bytes for each of the size."""
ELEMENTS_BYTES: Final = (1, 2, 4, 8)
"""That an element may have."""


class Law(IntEnum):
    """How a block's bytes follow the input's."""

    CONSTANT = 0
    LINE = 1
    SQUARE = 2
    CUBE = 3
    FOURTH = 4
    """The square of a square, such as attention over the pixels of a picture by its height."""
    ODD = 5
    """A line with a large constant, one that falls, or a power that is none of these."""


POWERS: Final = (Law.SQUARE, Law.CUBE, Law.FOURTH)
BYTES_MAX: Final = 1 << 50
"""Of a block at another size, 1 PiB: the sum of thousands is still a whole number of 64 bits."""
GROWS_MAX: Final = 50.0
"""Natural logarithm of by how much a block grows; what is more has BYTES_MAX anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The blocks of a step, and their bytes at any size of the input."""

    window: Window
    size: float
    """Of the input, in the window."""
    other_size: float
    other_bytes: Array
    """Of each block at ``other_size``."""
    law: Array
    """Members of :class:`Law`."""
    matched: float
    """Share of the blocks that both steps have."""
    num_matched: int
    number: int | None = None
    """The batch or length of ``size``; None: not known."""
    evaluated: Array | None = None
    """Of one size: which blocks are of an evaluation."""
    samples: Sequence[int] = ()
    """Places of blocks of single samples, whose bytes are those of one, whatever the batch."""

    @property
    def padded_share(self) -> float:
        """Of the bytes made in the step, those in proportion to the size and no whole number for each of it.

        As where a model pads its input to whole windows: in proportion by chance.
        """
        made = np.arange(len(self.window)) >= self.window.num_older
        own, other = self.window.bytes, self.other_bytes
        if self.number is None or self.other_size == self.size:
            return 0.0
        is_line = _are_in_proportion(own, other, self.size, self.other_size)
        padded = made & (self.law == Law.LINE) & is_line & (own % self.number != 0)
        padded[list(self.samples)] = False
        return float(own[padded].sum() / max(int(own[made].sum()), 1))

    @property
    def odd_share(self) -> float:
        """Of the bytes made in the step, those that grow in no way that has a name."""
        made = np.arange(len(self.window)) >= self.window.num_older
        whole = int(self.window.bytes[made].sum())
        return float(self.window.bytes[made & (self.law == Law.ODD)].sum() / max(whole, 1))

    def sizes_at(self, size: float) -> Array:
        """The bytes of each block at a size of the input, never below 0."""
        own, other = self.window.bytes.astype(np.float64), self.other_bytes.astype(np.float64)
        if self.other_size == self.size:
            return _whole(np.where(self.law == Law.CONSTANT, own, own * size / self.size))
        way = (size - self.size) / (self.size - self.other_size)
        found = np.maximum(own + (own - other) * way, 0)
        for power in POWERS:
            one, two = own ** (1 / power), other ** (1 / power)
            root = np.maximum(one + (one - two) * way, 0)
            found = np.where(self.law == power, root**power, found)
        return _whole(np.where(self.law == Law.CONSTANT, own, found))

    def _odd_as_powers(self, size: float) -> Array:
        """The bytes at a size if each odd block goes on with its own exponent, which no line does."""
        own, other = self.window.bytes.astype(np.float64), self.other_bytes.astype(np.float64)
        is_meant = (self.law == Law.ODD) & (own > 0) & (other > 0)
        exponent = np.log(own / other, where=is_meant, out=np.zeros(len(own)))
        exponent /= math.log(self.size / self.other_size)
        powers = own * np.exp(np.minimum(exponent * math.log(size / self.size), GROWS_MAX))
        return np.where(is_meant, _whole(powers), self.sizes_at(size))

    def peaks_at(self, size: float) -> tuple[int, int, int]:
        """The peak at a size: the least, what is told, and the most.

        Of one size the bounds are those of :meth:`least_at` and :meth:`most_at`; of two, what is odd goes on
        as a line, or with its own exponent.
        """
        told = self.peak_at(size)
        if self.other_size == self.size:
            return self.least_at(size), told, self.most_at(size)
        if not np.any(self.law == Law.ODD):
            return told, told, told
        other = self.window.peak(self._odd_as_powers(size))[0]
        return min(told, other), told, max(told, other)

    def peak_at(self, size: float) -> int:
        """The most bytes alive at once at a size of the input."""
        return self.window.peak(self.sizes_at(size))[0]

    def least_at(self, size: float) -> int:
        """The peak if no block as large as a parameter grows, and none of an evaluation.

        The former may be one, or a part of its gradient.
        """
        stays = as_large_as_parameters(self.window)
        if self.evaluated is not None:
            stays |= self.evaluated
        sizes = np.where(stays, self.window.bytes, self.sizes_at(size))
        return self.window.peak(sizes)[0]

    def evaluates_at(self, size: float) -> bool:
        """Whether the peak at a size is another if no evaluation grows."""
        if self.evaluated is None or not self.evaluated.any():
            return False
        sizes = np.where(self.evaluated, self.window.bytes, self.sizes_at(size))
        return self.window.peak(sizes)[0] != self.peak_at(size)

    def most_at(self, size: float) -> int:
        """The peak at a size, of one size: if what may follow the input though it is not seen to does so."""
        own = self.window.bytes
        grown, squares = _whole(own * (size / self.size)), _whole(own * (size / self.size) ** 2)
        sizes = np.where(may_follow_input(self.window), grown, self.sizes_at(size))
        return self.window.peak(np.where(self.may_be_squares(), squares, sizes))[0]

    def may_be_squares(self) -> Array:
        """Which blocks of forward and backward are as large as a table of the batch by the batch."""
        tables = [size * self.number**2 for size in ELEMENTS_BYTES] if self.number else []
        found: Array = (
            np.isin(self.window.bytes, tables)
            & (self.law == Law.LINE)
            & np.array([each in COMPUTING for each in self.window.phase], bool)
        )
        return found

    @property
    def resized_share(self) -> float:
        """Of the parameters' bytes, those of parameters that have others in the other step."""
        parameters = are_parameters(self.window)
        whole = int(self.window.bytes[parameters].sum())
        return float(self.window.bytes[parameters & (self.law != Law.CONSTANT)].sum() / max(whole, 1))

    def refuse(self, what: str, unclear: Sequence[str] = (), differing: str = "") -> None:
        """Raises CannotTell where the two steps are not the same program at two sizes.

        Args:
            what: batch or length; with the length parameters may grow, such as those of positions.
            unclear: names of code that could be that of several others, for the reason.
            differing: how steps of one size differ, likewise.
        """
        if self.matched < MATCHED_LEAST:
            which = f"; {', '.join(unclear[:UNCLEAR_MAX])}" if unclear else ""
            raise CannotTell(
                f"of the blocks of the steps compared only {self.matched:.1%} are the same in both, at least "
                f"{MATCHED_LEAST:.0%} are needed: they did not run the same program, or not the same "
                f"kernels (convolutions take other ones at some sizes), or blocks pile up from step to step "
                f"(rankmem leaks){which}{differing}"
            )
        if what == "batch" and self.resized_share > RESIZED_SHARE_MAX:
            raise CannotTell(
                f"{self.resized_share:.0%} of the parameters' bytes belong to parameters of other sizes in "
                "the other step, and no parameter follows the batch: the models differ, or over how many "
                "ranks they are sharded"
            )
        if self.odd_share > ODD_SHARE_MAX:
            raise CannotTell(
                f"{self.odd_share:.0%} of the bytes made in a step follow the input's size in no way that "
                f"could be continued, at most {ODD_SHARE_MAX:.0%} may: the steps differ in more than the "
                "size, as with and without autocast, or sizes depend on the data"
            )
        if self.padded_share > PADDED_SHARE_MAX:
            raise CannotTell(
                f"{self.padded_share:.0%} of the bytes made in a step grow with the {what} but cannot be "
                f"divided by it ({self.number:,}), at most {PADDED_SHARE_MAX:.0%} may: the model seems to "
                "pad its input. Say the padded sizes with --recorded, and ask for padded ones"
            )


def _whole(sizes: Array) -> Array:
    found: Array = np.minimum(sizes, BYTES_MAX).round().astype(np.int64)
    return found


def of_one(window: Window, size: float, number: int | None = None) -> Model:
    """The model from one size: what is not the model's own grows with the input.

    An upper bound for larger inputs, as long as nothing grows faster than the input.
    """
    constant = is_of_model(window.category, window.phase)
    return Model(
        window=window,
        size=size,
        other_size=size,
        other_bytes=window.bytes,
        law=np.where(constant, Law.CONSTANT, Law.LINE),
        matched=1.0,
        num_matched=len(window),
        number=number,
        evaluated=of_evaluations(window),
    )


def of_two(window: Window, size: float, other: Window, other_size: float, number: int | None = None) -> Model:
    """The model from two sizes: lives are those of ``window``.

    A block that only ``window`` has grows with the input if it is not the model's own.
    """
    partner = np.full(len(window), -1, np.int64)
    first, second = other.names(), window.names()
    own, others = window.bytes.astype(np.float64), other.bytes.astype(np.float64)
    for part_1, part_2 in zip(_parts(other), _parts(window), strict=True):
        sizes_1, sizes_2 = others[part_1], own[part_2]
        names_1, names_2 = [first[each] for each in part_1], [second[each] for each in part_2]

        def are_like(ones: range, twos: range, sizes_1: Array = sizes_1, sizes_2: Array = sizes_2) -> Array:
            return likeness(sizes_2[None, twos], sizes_1[ones, None], size, other_size)

        pairs = aligned(names_1, names_2)
        for one, two in paired_within_runs(names_1, names_2, pairs, are_like):
            partner[part_2[two]] = part_1[one]
    samples_1, samples_2, sample_bytes = _of_samples(other, other_size, window, size)
    partner[samples_2] = -1
    paired = partner >= 0
    num_matched = int(paired.sum())
    rest = max(len(other) - len(samples_1), len(window) - len(samples_2), 1)
    of_model = is_of_model(window.category, window.phase)
    alone = np.where(of_model, own, own * other_size / size)
    others = np.where(paired, others[np.maximum(partner, 0)], alone)
    others[samples_2] = sample_bytes
    return Model(
        window=window,
        size=size,
        other_size=other_size,
        other_bytes=others,
        law=_laws(own, others, size, other_size),
        matched=float(num_matched / rest),
        num_matched=num_matched + len(samples_2),
        number=number,
        samples=samples_2,
    )


def _parts(window: Window) -> tuple[list[int], list[int]]:
    """Places of the blocks older than a step, and of those made in it.

    The optimizer's state comes first: made in the first step, it is younger than that one's gradients and
    older than all later ones'.
    """
    older = sorted(range(window.num_older), key=lambda place: window.category[place] != STATE)
    return older, list(range(window.num_older, len(window)))


def _of_samples(
    other: Window, other_size: float, window: Window, size: float
) -> tuple[list[int], list[int], list[float]]:
    """The blocks of both that the loading of the data makes for each sample: as many more as the batch.

    They are made in the step or the one before, outside of modules and of phases, with the same bytes each.
    Of those of ``window`` also the bytes at the other size: fewer, as fewer are alive at once there; the
    same, where each is freed before the next one is made.
    """
    found = []
    for each in (other, window):
        names, num_older = each.names(), each.num_older
        by_name: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place, category in enumerate(each.category):
            if each.module[place] is None and each.phase[place] not in OF_STEP and category not in LASTING:
                by_name[(*names[place], place < num_older, int(each.bytes[place]))].append(place)
        found.append(by_name)
    first, second = found
    ones: list[int] = []
    twos: list[int] = []
    sizes: list[float] = []
    for name in first.keys() & second.keys():
        one, two = first[name], second[name]
        if len(one) != len(two) and len(one) * size == len(two) * other_size:
            ones += one
            twos += two
            sizes += [name[-1] * _at_once(other, one) / _at_once(window, two)] * len(two)
    return ones, twos, sizes


def _at_once(window: Window, places: Sequence[int]) -> float:
    """How many of these blocks are alive at once, at most."""
    return peak_of(window.born[places], window.died[places], np.ones(len(places)))[0]


def likeness(own: Array, other: Array, size: float, other_size: float) -> Array:
    """How well blocks may be the same: 0 not, most where they have the same bytes or just as many more."""
    is_like = _laws(own, other, size, other_size) != Law.ODD
    is_same = _are_in_proportion(own, other, size, other_size) | (own == other)
    # As many like pairs as can be come first, what is the same decides between sets of as many.
    found: Array = is_like * CELLS_MAX + is_same
    return found


def _are_in_proportion(own: Array, other: Array, size: float, other_size: float) -> Array:
    """Which blocks have just as many more bytes as the size is larger."""
    found: Array = np.abs(own * other_size - other * size) <= SAME_SHAPE * own * other_size
    return found


def _laws(own: Array, other: Array, size: float, other_size: float) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.log(own / other) / np.log(size / other_size)
    law = np.full(exponent.shape, Law.ODD, np.int64)
    law[np.abs(exponent - 1) <= LINE_WITHIN] = Law.LINE
    for power in POWERS:
        law[np.abs(exponent - power) <= POWER_WITHIN] = power
    law[own == other] = Law.CONSTANT
    return law
