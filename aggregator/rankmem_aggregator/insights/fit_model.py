"""A step at any size on any device: its peak, what it needs there, and the largest size that fits.

Stage: insights. In: steady steps of one or more sizes, a device. Out: :class:`Fitted`, their models with the
bounds of their error; :class:`Sized`, what they come to on the device. Asks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rankmem_aggregator.insights.as_cuda import Variant, variants
from rankmem_aggregator.insights.capacity import reserved_and_needed, runs_in
from rankmem_aggregator.insights.fit_sizes import DIFFERING_SHARE, Recorded, Wanted
from rankmem_aggregator.insights.laws import Model, of_one, of_two
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.same_code import SameCode
from rankmem_aggregator.insights.settings import Settings
from rankmem_aggregator.insights.windows import refuse_without_phases
from rankmem_aggregator.quantity_text import bytes_text

TWO_SIZES_SHARE: Final = 0.01
CHANGING: Final = "aten::_convolution_double_backward"
CHANGING_SHARE: Final = 0.06
"""Where a step has this operator: it takes other kernels, with other scratch, at other sizes, which the
recorded ones do not show. 3.0 % were measured (docs/insights.md)."""
ONE_SIZE_SHARES: Final = (0.2, 0.01)
"""How far the real peak may be below and above that predicted from one size, should no block grow that may be
a copy of a parameter: measured, docs/insights.md."""
CHANGING_FROM_ONE: Final = "aten::convolution_backward"
ONE_SIZE_CHANGING_SHARE: Final = 0.02
"""How far the real peak may be above that predicted from one size, where a step has this operator: two sizes
show its scratch, one does not. 1.1 % were measured (docs/insights.md)."""
AS_CUDA_SHARE: Final = 0.01
"""How far a CPU's step on CUDA may be outside of the ways in which it may run there: of six trainings on one
GPU 0.15 % at most (docs/insights.md)."""
TIMES_MAX: Final = 1 << 16
"""Of the largest recorded size: where the search for the largest that fits ends."""
STEPS_OF_TIMES: Final = 20
"""Where sizes have no numbers, the largest that fits is found in twentieths of the largest recorded."""


class Fitted:
    """The models of the recorded sizes, and what they say of others."""

    def __init__(self, same: SameCode, what: str) -> None:
        self.same = same
        self.recorded = same.recorded
        self.what = what
        self._models: dict[tuple[float, float], Model] = {}
        self.below, self.above = self._bounds()

    def model(self, size: float, among: Sequence[Recorded] | None = None) -> Model:
        """The model for a size: from the recorded sizes nearest to it, with the lives of the nearest."""
        near = sorted(among or self.recorded, key=lambda each: abs(math.log(size / each.size)))[:2]
        key = (near[0].size, near[-1].size)
        if key not in self._models:
            one, other = near[0], near[-1]
            self._models[key] = (
                of_one(one.window, one.size, one.number)
                if len(near) == 1
                else of_two(one.window, one.size, other.window, other.size, one.number)
            )
        return self._models[key]

    def shares_at(self, size: float) -> tuple[float, float]:
        """By what shares the real peak may be below and above that predicted for a size."""
        least, told, most = self.model(size).peaks_at(size)
        told = max(told, 1)
        below = self.below if least == told else 1 - (1 - self.below) * least / told
        above = self.above if most == told else (1 + self.above) * most / told - 1
        return below, above

    def refuse(self, wanted: Sequence[Wanted]) -> None:
        """Raises CannotTell where the recorded sizes do not carry what is asked."""
        for one in self.recorded if len(self.recorded) > 1 else ():
            self.model(one.size).refuse(self.what, self.same.unclear, self._differing())
        if len(self.recorded) > 1:
            return
        refuse_without_phases(self.recorded[0].window)
        if self.what == "length":
            raise CannotTell(
                "steps of one length were recorded: what grows with its square cannot be told from what "
                "grows with "
                "it; record a second length"
            )
        if any(each.times < 1 for each in wanted):
            raise CannotTell(
                "steps of one batch were recorded, which bounds larger ones alone; record a second, "
                "smaller one"
            )

    def _differing(self) -> str:
        """How steps of one size differ among themselves, for the reason; empty where they do not."""
        least, most = min(
            (each.allocated_bytes for each in self.recorded), key=lambda each: each[0] / max(each[1], 1)
        )
        if least >= (1 - DIFFERING_SHARE) * most:
            return ""
        return (
            f"; steps of one size allocate from {bytes_text(least)} to {bytes_text(most)}: where layers are "
            "left out at random, record with a rate of 0, which holds most; where lengths vary, with one of "
            "them"
        )

    def _bounds(self) -> tuple[float, float]:
        """By what shares the real peak may be below and above the one predicted."""
        if len(self.recorded) == 1:
            below, above = ONE_SIZE_SHARES
            return below, ONE_SIZE_CHANGING_SHARE if self.has_changing_kernels else above
        least = CHANGING_SHARE if self.has_changing_kernels else TWO_SIZES_SHARE
        if len(self.recorded) == 2:
            return least, least
        worst = 0.0
        for one in self.recorded:
            others = [other for other in self.recorded if other is not one]
            real = one.window.peak()[0]
            worst = max(worst, abs(self.model(one.size, others).peak_at(one.size) / max(real, 1) - 1))
        share = max(least, 2 * worst)
        return share, share

    @property
    def has_changing_kernels(self) -> bool:
        """Whether a step has an operator whose scratch is another at sizes beyond those recorded."""
        changing = CHANGING_FROM_ONE if len(self.recorded) == 1 else CHANGING
        return any(changing in each.window.operator for each in self.recorded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device on which it is to run."""

    settings: Settings | None
    """Of its allocator; None where it keeps no pool, or cannot be replayed."""
    total_bytes: int | None
    usable_bytes: int | None
    as_cuda: bool
    """Whether a CPU's step is to run on CUDA, where libraries and the optimizer allocate otherwise."""
    not_replayed: str = ""
    """Why there is no figure of the allocator; empty on a CPU."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A model on a device: what the step holds and needs there."""

    fitted: Fitted
    device: Device

    def variants(self, size: float) -> Iterable[Variant]:
        """Ways in which the step may run, first the one that is told."""
        model = self.fitted.model(size)
        one = Variant(window=model.window, sizes=model.sizes_at(size))
        return variants(one.window, one.sizes) if self.device.as_cuda else (one,)

    def shares_at(self, size: float) -> tuple[float, float]:
        """By what shares the real peak may be below and above the one told, of a size not recorded."""
        share = AS_CUDA_SHARE if self.device.as_cuda else 0.0
        below, above = self.fitted.shares_at(size)
        return below + share - below * share, above + share + above * share

    def row(self, size: float, number: int | None, times: float) -> dict[str, Any]:
        fitted, device = self.fitted, self.device
        is_recorded = any(each.size == size for each in fitted.recorded)
        below, above = self.shares_at(size)
        if is_recorded:
            below = above = AS_CUDA_SHARE if device.as_cuda else 0.0
        told, *others = self.variants(size)
        peaks = [each.peak_bytes() for each in (told, *others)]
        reserved = needed = None
        if device.settings is not None:
            reserved, needed = reserved_and_needed(told.trace(device.settings))
        return {
            "size": number,
            "times": times,
            "is_recorded": is_recorded,
            "live_peak_bytes": peaks[0],
            "low_bytes": round(min(peaks) * (1 - below)),
            "high_bytes": round(max(peaks) * (1 + above)),
            "needed_bytes": needed,
            "reserved_peak_bytes": reserved,
            "fits": self.fits(size),
        }

    def fits(self, size: float) -> str | None:
        """yes, no or unclear; None where no device was named."""
        if self.device.usable_bytes is None:
            return None
        below, above = self.shares_at(size)
        if self.device.not_replayed:  # what it needs beyond its live bytes is not known
            return "unclear" if self.runs(size, -below) else "no"
        # The allocator's own error is within the same bounds as the bytes it is given.
        if self.runs(size, above):
            return "yes"
        return "unclear" if self.runs(size, -below, means=any) else "no"

    def runs(self, size: float, more: float = 0.0, means: Callable[[Iterable[bool]], bool] = all) -> bool:
        """Whether it runs, were all of it larger by a share: in all of :meth:`variants`, or any."""
        usable = (self.device.usable_bytes or 0) / (1 + more)
        if self.device.settings is None:
            return self.fitted.model(size).peak_at(size) <= usable
        settings = self.device.settings
        return means(runs_in(each.trace(settings), usable) for each in self.variants(size))


def _largest(runs: Callable[[int], bool], most: int) -> int:
    """The largest whole number up to ``most`` for which it runs; 0 where none does."""
    low, high = 0, 1
    while high < most and runs(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if runs(middle):
            low = middle
        else:
            high = middle
    return low


def largest_figures(sized: Sized, largest: Recorded) -> dict[str, Any]:
    """The largest size that fits, and the largest that does whatever the error."""
    unit = 1.0 if largest.number is not None else largest.size / STEPS_OF_TIMES
    most = int(TIMES_MAX * largest.size / unit)
    one_size = len(sized.fitted.recorded) == 1
    least = round(largest.size / unit) if one_size else 1

    def largest_with(share: Callable[[float], float]) -> int:
        found = _largest(lambda count: sized.runs(count * unit, share(count * unit)), most)
        return found if found >= least else 0

    found = {
        "largest": largest_with(lambda _: 0.0),
        "largest_surely": largest_with(lambda size: sized.shares_at(size)[1]),
    }
    if largest.number is not None:
        return {f"{name}_size": value or None for name, value in found.items()}
    return {f"{name}_times": value / STEPS_OF_TIMES or None for name, value in found.items()}
