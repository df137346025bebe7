"""Edits of the lives of a step's blocks: what a remedy does to them.

Stage: insights. In: :class:`Lives` of a steady step. Out: other lives; the peak is then recomputed, since
bytes that go at the peak move it. An edit returns the lives it was given where it has nothing to do. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np

from rankmem_aggregator.insights.leftovers import left_over
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.weight_copies import casts_and_copies
from rankmem_aggregator.insights.windows import LASTING, NEVER, Window, peak_of

COPIED_GRADIENTS: Final = "aten::_foreach_add"
"""What makes them in the optimizers whose decay of weights is not decoupled (Source: torch.optim, 2.0)."""
BUCKET_BIRTHS: Final = 2
"""So many allocations later autograd lets go of a gradient that was copied into its bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """Lives of blocks: born, died (NEVER: after the step), bytes, and which block of the window each was."""

    born: Array
    died: Array
    bytes: Array
    of: Array

    def peak(self) -> tuple[float, float]:
        """The most bytes alive at once, and when."""
        counted = (self.bytes > 0) & (self.died > self.born)
        return peak_of(self.born[counted], self.died[counted], self.bytes[counted])

    def changed(self, **columns: Array) -> Lives:
        """The same with other columns."""
        return replace(self, **columns)

    def kept(self, which: Array) -> Lives:
        """Those of a mask alone."""
        return Lives(born=self.born[which], died=self.died[which], bytes=self.bytes[which], of=self.of[which])

    def is_as(self, other: Lives) -> bool:
        """Whether nothing was changed."""
        columns = (self.born, self.died, self.bytes, self.of), (other.born, other.died, other.bytes, other.of)
        return self is other or all(np.array_equal(one, two) for one, two in zip(*columns, strict=True))

    def and_more(self, born: Array, died: Array, sizes: Array, of: Array) -> Lives:
        """With further lives."""
        return Lives(
            born=np.concatenate([self.born, born]),
            died=np.concatenate([self.died, died]),
            bytes=np.concatenate([self.bytes, sizes]),
            of=np.concatenate([self.of, of]),
        )

    def and_one(self, born: float, died: float, size: float, of: int) -> Lives:
        """With one more life."""
        return self.and_more(np.array([born]), np.array([died]), np.array([size]), np.array([of]))


Edit = Callable[["Step", Lives], Lives]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A steady step, with what edits ask about its blocks."""

    window: Window
    category: Array
    phase: Array
    operator: Array
    module: list[str | None]
    inside: Array
    """Made in the step, not before."""
    in_backward: Array
    """Made in it, by backward."""
    first_pass: Array
    """Made by the forward pass itself, not when a checkpoint computed it again."""
    families: list[list[str]]
    """Paths of siblings that repeat, such as blocks.0, blocks.1; the largest family first."""
    unit_of: Array
    """Of each block the sibling that it is in, over all families; -1 outside of them."""
    call_of: Array
    """Of each block a number, the same for those of one operator, module and line."""
    casts: Array
    """May be a weight in half the bits."""
    copies: Array
    """May be a weight, in half the bits or as many."""
    left_over: Array
    """Of the step before, and nothing that this one reads."""
    units: list[str] = field(default_factory=list)

    @classmethod
    def of_window(cls, window: Window) -> Self:
        """The facts of a window."""
        paths = [None if path is None else path.removeprefix("module.") for path in window.module]
        phase = np.array([each or "" for each in window.phase])
        inside = np.arange(len(window)) >= window.num_older
        forward = inside & (phase == "forward")
        families = families_of({paths[place] for place in np.flatnonzero(forward)})
        units = [unit for family in families for unit in family]
        numbers = {unit: number for number, unit in enumerate(units)}
        known: dict[str | None, int] = {}
        for path in set(paths):
            known[path] = next((numbers[part] for part in _prefixes(path) if part in numbers), -1)
        call_of = _numbered(zip(window.operator, window.module, window.line, strict=True))
        casts, copies = casts_and_copies(window)
        return cls(
            window=window,
            category=np.array(window.category),
            phase=phase,
            operator=np.array([each or "" for each in window.operator]),
            module=paths,
            inside=inside,
            in_backward=inside & (phase == "backward"),
            first_pass=forward & ~np.array(window.recomputed, bool),
            families=families,
            unit_of=np.array([known[path] for path in paths], np.int64),
            call_of=call_of,
            casts=casts,
            copies=copies,
            left_over=left_over(window, call_of),
            units=units,
        )

    def backward_births(self, unit: int) -> Array:
        """When the blocks of a unit's backward were made."""
        found: Array = self.window.born[self.in_backward & (self.unit_of == unit)]
        return found

    def lives(self) -> Lives:
        """The lives as they were."""
        window = self.window
        return Lives(
            born=window.born.astype(np.float64),
            died=window.died.astype(np.float64),
            bytes=window.bytes.astype(np.float64),
            of=np.arange(len(window)),
        )


def _numbered(names: Iterable[Hashable]) -> Array:
    """Equal names as equal numbers."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)


def _prefixes(path: str | None) -> list[str]:
    """The path and those above it, the shortest first."""
    parts = [] if path is None else path.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def families_of(paths: set[str | None]) -> list[list[str]]:
    """Siblings that differ by a number alone, the outermost of each path; families of two at least."""
    found: dict[str, dict[str, int]] = {}
    for path in paths:
        for unit in _prefixes(path):
            above, _, name = unit.rpartition(".")
            if name.isdigit():
                found.setdefault(above, {})[unit] = int(name)
                break
    families = [sorted(members, key=members.__getitem__) for members in found.values() if len(members) > 1]
    return sorted(families, key=lambda family: (-len(family), family[0]))


def scaled(shares: dict[str, float]) -> Edit:
    """Blocks of these categories in a share of their bytes."""

    def edit(step: Step, lives: Lives) -> Lives:
        factor = np.ones(len(lives.of))
        for category, share in shares.items():
            factor[step.category[lives.of] == category] = share
        return lives.changed(bytes=lives.bytes * factor)

    return edit


def is_lasting(step: Step, lives: Lives) -> Array:
    """Of each whether it is a parameter, a gradient or state."""
    found: Array = np.isin(step.category[lives.of], list(LASTING))
    return found


def scratch_of(step: Step, lives: Lives) -> Array:
    """Of each whether the optimizer made it in its step, and it is none of what lasts."""
    is_made = (lives.born > step.window.begin) & (step.phase[lives.of] == "optimizer")
    found: Array = is_made & ~is_lasting(step, lives)
    return found


def one_at_a_time(times: int | None = None) -> Edit:
    """foreach=False: of the optimizer's scratch no more than so many times the largest parameter.

    Args:
        times: None: as Adam and its kin have it, twice, and thrice where a decay of weights copies gradients:
            that copy then lives as long as the rest.
    """

    def edit(step: Step, lives: Lives) -> Lives:
        of, scratch = lives.of, scratch_of(step, lives)
        largest = lives.bytes[step.category[of] == "parameter"].max(initial=0)
        ends = lives.died[scratch & (lives.died < NEVER)]
        of_adam = 3 if COPIED_GRADIENTS in step.operator[of[scratch]] else 2
        most = (of_adam if times is None else times) * largest
        if not len(ends) or lives.kept(scratch).peak()[0] <= most:
            return lives
        begin, first = float(lives.born[scratch].min()), int(of[np.flatnonzero(scratch)[0]])
        return lives.kept(~scratch).and_one(begin, float(ends.max()), float(most), first)

    return edit


def lets_gradients_go(step: Step) -> bool:
    """Whether gradients of the step before go in it: what clears these does not clear those that stay."""
    lives = step.lives()
    gradient = (step.category[lives.of] == "gradient") & (step.phase[lives.of] == "backward")
    return bool((gradient & (lives.born <= step.window.begin) & (lives.died < NEVER)).any())


def gradients_let_go(step: Step, lives: Lives) -> Lives:
    """zero_grad(set_to_none=True): gradients go between steps, and come with backward."""
    of = lives.of
    # A bucket of DDP's, which backward does not make, stays whatever zero_grad does.
    gradient = (step.category[of] == "gradient") & (step.phase[of] == "backward")
    stays = gradient & (lives.born <= step.window.begin) & (lives.died >= NEVER)
    if not stays.any():
        return lives
    optimizer = lives.born[(lives.born > step.window.begin) & (step.phase[of] == "optimizer")]
    late = float(optimizer.min()) - 0.5 if len(optimizer) else float(step.window.end)
    parts, alone = added_to(step, lives, stays)
    died = lives.died.copy()
    died[parts] = NEVER
    edited = lives.changed(died=died).kept(~stays)
    ends = np.full(len(alone), float(NEVER))
    return edited.and_more(np.full(len(alone), late), ends, lives.bytes[alone], of[alone])


def added_to(step: Step, lives: Lives, stays: Array) -> tuple[list[int], list[int]]:
    """What backward makes and adds to gradients that stay, and those of these of which it is not known.

    Of each gradient it is the shortest life of its size that the first backward begins.
    """
    of = lives.of
    in_backward = (lives.born > step.window.begin) & (step.phase[of] == "backward")
    began = lives.born[in_backward].min(initial=step.window.end)
    # A step that accumulates gradients runs forward again: what comes then is added to what is there.
    forward = lives.born[step.first_pass[of] & (lives.born > began)]
    backward = in_backward & (lives.died < NEVER) & (lives.born < forward.min(initial=step.window.end))
    made = np.flatnonzero(backward & np.isin(step.category[of], ("autograd_detail", "gradient", "temporary")))
    by_size: dict[float, list[int]] = {}
    for place in made[np.argsort((lives.died - lives.born)[made], kind="stable")][::-1].tolist():
        by_size.setdefault(float(lives.bytes[place]), []).append(place)
    parts, alone = [], []
    for place in np.flatnonzero(stays).tolist():
        same = by_size.get(float(lives.bytes[place]))
        if same:
            parts.append(same.pop())
        else:
            alone.append(place)
    return parts, alone


def in_bucket_views(step: Step, lives: Lives) -> Lives:
    """gradient_as_bucket_view=True: gradients are DDP's buckets; what backward makes goes once copied."""
    of = lives.of
    gradient = (step.category[of] == "gradient") & (step.phase[of] == "backward")
    older = gradient & (lives.born <= step.window.begin)
    of_ddp = (step.category[of] == "gradient") & (step.phase[of] != "backward")
    buckets = of_ddp & (lives.born <= step.window.begin)
    if lives.bytes[buckets].sum() < max(lives.bytes[older].sum(), 1):  # no DDP, or not these gradients
        return lives
    made = gradient & (lives.born > step.window.begin)
    soon = soon_after(step, lives)
    return lives.changed(died=np.where(made, np.minimum(lives.died, soon), lives.died)).kept(~older)


def soon_after(step: Step, lives: Lives) -> Array:
    """Of each life when autograd lets go of it, if it is a gradient that backward makes and copies."""
    births = np.sort(lives.born[lives.born > step.window.begin])
    place = np.searchsorted(births, lives.born, side="right") + BUCKET_BIRTHS
    found: Array = births[np.minimum(place, len(births) - 1)]
    return found


def let_go_of_left_over(step: Step, lives: Lives) -> Lives:
    """What is left over of the step before goes with it."""
    return lives.kept(~(step.left_over[lives.of] & _goes_in_step(step, lives)))


def let_go_of_last_step(step: Step, lives: Lives) -> Lives:
    """Whatever the step before left and this one frees goes with the step before: at the best."""
    return lives.kept(~_goes_in_step(step, lives))


def _goes_in_step(step: Step, lives: Lives) -> Array:
    stays = (lives.born > step.window.begin) | (lives.died >= NEVER)
    return ~(stays | is_lasting(step, lives))
