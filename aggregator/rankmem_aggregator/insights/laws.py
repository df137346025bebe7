"""How the sizes of a step's blocks follow the size of its input, and what the step would hold at another.

Stage: insights. In: steps at one or two input sizes. Out: :class:`Model`, which gives every block its bytes
at any input size. The blocks of one step are paired with the same ones of the other (:mod:`align`); what
changes between the two is taken for a line or the square of a line; every block lives as it did. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from rankmem_aggregator.insights.align import aligned
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.windows import (
    Window,
    are_parameters,
    as_large_as_parameters,
    is_of_model,
    may_follow_input,
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
SQUARE_WITHIN: Final = 0.15
"""So far from 2 that of the square of such a line."""


class Law(IntEnum):
    """How a block's bytes follow the input's."""

    CONSTANT = 0
    LINE = 1
    SQUARE = 2
    ODD = 3
    """A line with a large constant, or one that falls."""


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
            return np.where(self.law == Law.CONSTANT, own, own * size / self.size).round().astype(np.int64)
        way = (size - self.size) / (self.size - self.other_size)
        line = np.maximum(own + (own - other) * way, 0)
        root = np.maximum(np.sqrt(own) + (np.sqrt(own) - np.sqrt(other)) * way, 0)
        found = np.where(self.law == Law.SQUARE, root * root, line)
        return np.where(self.law == Law.CONSTANT, own, found).round().astype(np.int64)

    def peak_at(self, size: float) -> int:
        """The most bytes alive at once at a size of the input."""
        return self.window.peak(self.sizes_at(size))[0]

    def least_at(self, size: float) -> int:
        """The peak if no block as large as a parameter grows: that may be one, or a part of its gradient."""
        sizes = np.where(as_large_as_parameters(self.window), self.window.bytes, self.sizes_at(size))
        return self.window.peak(sizes)[0]

    def most_at(self, size: float) -> int:
        """The peak at a size, of one size: if what may follow the input though it is not seen to does so."""
        own = self.window.bytes
        grown = (own * (size / self.size)).round().astype(np.int64)
        sizes = np.where(may_follow_input(self.window), grown, self.sizes_at(size))
        return self.window.peak(sizes)[0]

    @property
    def resized_share(self) -> float:
        """Of the parameters' bytes, those of parameters that have others in the other step."""
        parameters = are_parameters(self.window)
        whole = int(self.window.bytes[parameters].sum())
        return float(self.window.bytes[parameters & (self.law != Law.CONSTANT)].sum() / max(whole, 1))

    def refuse(self, what: str, unclear: Sequence[str] = ()) -> None:
        """Raises CannotTell where the two steps are not the same program at two sizes.

        Args:
            what: batch or length; with the length parameters may grow, such as those of positions.
            unclear: names of code that could be that of several others, for the reason.
        """
        if self.matched < MATCHED_LEAST:
            which = f"; {', '.join(unclear[:UNCLEAR_MAX])}" if unclear else ""
            raise CannotTell(
                f"of the blocks of the steps compared only {self.matched:.1%} are the same in both, at least "
                f"{MATCHED_LEAST:.0%} are needed: they did not run the same program, or blocks pile up from "
                f"step to step (rankmem leaks){which}"
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


def of_one(window: Window, size: float) -> Model:
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
    )


def of_two(window: Window, size: float, other: Window, other_size: float) -> Model:
    """The model from two sizes: lives are those of ``window``.

    A block that only ``window`` has grows with the input if it is not the model's own.
    """
    partner = np.full(len(window), -1, np.int64)
    first, second = other.names(), window.names()
    for begin_1, end_1, begin_2, end_2 in (
        (0, other.num_older, 0, window.num_older),
        (other.num_older, len(other), window.num_older, len(window)),
    ):
        for one, two in aligned(first[begin_1:end_1], second[begin_2:end_2]):
            partner[begin_2 + two] = begin_1 + one
    paired = partner >= 0
    own = window.bytes.astype(np.float64)
    of_model = is_of_model(window.category, window.phase)
    alone = np.where(of_model, own, own * other_size / size)
    others = np.where(paired, other.bytes[np.maximum(partner, 0)], alone)
    return Model(
        window=window,
        size=size,
        other_size=other_size,
        other_bytes=others,
        law=_laws(own, others, size, other_size),
        matched=float(paired.sum() / max(len(window), len(other), 1)),
        num_matched=int(paired.sum()),
    )


def _laws(own: Array, other: Array, size: float, other_size: float) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.log(own / other) / np.log(size / other_size)
    law = np.full(len(own), Law.ODD, np.int64)
    law[np.abs(exponent - 1) <= LINE_WITHIN] = Law.LINE
    law[np.abs(exponent - 2) <= SQUARE_WITHIN] = Law.SQUARE
    law[own == other] = Law.CONSTANT
    return law
