"""Steps of several recordings of one program: which code of the others is which of the first.

Stage: insights. In: steps of sizes, from one or more recordings. Out: :class:`SameCode`, the same steps,
whose blocks have the names that the first recording has for their code. These differ where files or folders
were moved, where it was started elsewhere, and where functions or classes of modules were renamed. What is
the same code is told as :mod:`moved` tells it, and what could be several is left as it is: such steps are
refused later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.diff_text import moved
from rankmem_aggregator.insights.fit_sizes import Recorded
from rankmem_aggregator.insights.laws import MATCHED_LEAST
from rankmem_aggregator.insights.moved import Pair, Part, paired
from rankmem_aggregator.insights.renamed_classes import Code, Renamed, classes_of, renamed, shapes_of
from rankmem_aggregator.insights.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class SameCode:
    """Steps whose blocks have the first recording's names."""

    recorded: Sequence[Recorded]
    moved: Sequence[str] = ()
    """What was taken for the same: ``src/train.py -> train.py``, other recordings' names first."""
    unclear: Sequence[str] = ()
    """What could be several, of steps that were left as they are."""
    is_edited: bool = False
    """Lines have other numbers, so that blocks are told apart by functions alone."""


class _Line(NamedTuple):
    """A line of code as texts have it: ``train.py:12``, of a library ``[torch/nn.py:12]``."""

    file: str | None
    number: str
    function: str | None
    of_library: bool

    def text(self) -> str | None:
        own = self.function if self.file is None else f"{self.file}:{self.number}"
        return f"[{own}]" if own is not None and self.of_library else own


def with_first_names(recorded: Sequence[Recorded], asks: Sequence[Ask]) -> SameCode:
    """Steps of sizes, with the names of the first recording for what is the same code.

    Args:
        recorded: of one or more recordings.
        asks: by ``Recorded.source`` the way to ask that recording.
    """
    sources = sorted({each.source for each in recorded})
    first, found = sources[0], list(recorded)
    told: list[str] = []
    unclear: list[str] = []
    is_edited = False
    for source in sources[1:]:
        own = [each.window for each in found if each.source == first]
        other = [each.window for each in found if each.source == source]
        if _are_alike(own, other):
            continue
        names = _Names.of(own, other, (asks[first], asks[source]))
        called = [names.in_first(window) for window in other]
        if not _are_alike(own, called):
            if not _are_alike(*([_without_lines(window) for window in side] for side in (own, called))):
                unclear += names.unclear
                continue
            is_edited = True
        told += names.moved
        windows = iter(called)
        found = [replace(each, window=next(windows)) if each.source == source else each for each in found]
    if is_edited:
        found = [replace(each, window=_without_lines(each.window)) for each in found]
    return SameCode(
        recorded=found,
        moved=list(dict.fromkeys(told)),
        unclear=list(dict.fromkeys(unclear)),
        is_edited=is_edited,
    )


def _are_alike(own: Sequence[Window], other: Sequence[Window]) -> bool:
    """Whether each of the other windows has the names of enough blocks of one of the own, in any order."""
    counts = [Counter(window.names()) for window in own]
    return all(
        max(
            (Counter(window.names()) & count).total() / max(len(window), count.total(), 1) for count in counts
        )
        >= MATCHED_LEAST
        for window in other
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Names of another recording as the first has them."""

    renamed: Renamed
    pairs: Sequence[Pair]
    places: dict[tuple[str | None, str | None], set[tuple[str | None, str | None]]]
    """By file and function of the other recording those of the first."""
    files: dict[str | None, set[str | None]]

    @classmethod
    def of(cls, own: Sequence[Window], other: Sequence[Window], asks: tuple[Ask, Ask]) -> _Names:
        parts = [[part for window in side for part in _parts(window)] for side in (own, other)]
        head, base = (
            Code(
                classes=_classes(ask, side[0]),
                made={part.made() for part in made},
                shapes=_shapes(ask, side[0]),
            )
            for ask, side, made in zip(asks, (own, other), parts, strict=True)
        )
        classes = renamed(base, head)
        pairs = paired(dict.fromkeys(parts[1]), dict.fromkeys(parts[0]), classes)
        names = cls(renamed=classes, pairs=pairs, places={}, files={})
        for pair in pairs:
            if pair.base and pair.head and not pair.is_ambiguous:
                (before,), (now,) = pair.base, pair.head
                names.places.setdefault((before.file, before.function), set()).add((now.file, now.function))
                names.files.setdefault(before.file, set()).add(now.file)
        return names

    @property
    def moved(self) -> list[str]:
        return moved([pair for pair in self.pairs if not pair.is_ambiguous])

    @property
    def unclear(self) -> list[str]:
        return moved(
            [
                pair
                for pair in self.pairs
                if pair.is_ambiguous and not all(self._is_known(part) for part in pair.base)
            ],
            is_unclear=True,
        )

    def _is_known(self, part: Part) -> bool:
        return (
            len(self.places.get((part.file, part.function), ())) == 1
            or len(self.files.get(part.file, ())) == 1
        )

    def in_first(self, window: Window) -> Window:
        """The window with the first recording's names."""
        lines = [self._line(each) for each in _lines(window.line, window.function)]
        forward = [self._line(each) for each in _lines(window.forward_line, window.forward_function)]
        return replace(
            window,
            module=[self.renamed.module(each) for each in window.module],
            line=[each.text() for each in lines],
            function=[each.function for each in lines],
            forward_line=[each.text() for each in forward],
            forward_function=[each.function for each in forward],
        )

    def _line(self, line: _Line) -> _Line:
        places = self.places.get((line.file, line.function), set())
        if len(places) == 1:
            file, function = next(iter(places))
        else:
            files = self.files.get(line.file, set())
            file = next(iter(files)) if len(files) == 1 else line.file
            function = self.renamed.function(line.function)
        return line._replace(file=file, function=function)


def _parts(window: Window) -> Iterable[Part]:
    """What diff calls the parts: of a block of backward that of its forward call, and its own line's."""
    own = (_lines(window.line, window.function), _lines(window.forward_line, window.forward_function))
    for category, operator, module, line, forward in zip(
        window.category, window.operator, window.module, *own, strict=True
    ):
        for each in {line, forward}:
            if each.function is not None:
                yield Part(category, each.file, each.function, operator, module)


def _lines(lines: Sequence[str | None], functions: Sequence[str | None]) -> list[_Line]:
    known: dict[Any, _Line] = {}
    for each in zip(lines, functions, strict=True):
        if each not in known:
            known[each] = _line_of(*each)
    return [known[each] for each in zip(lines, functions, strict=True)]


def _line_of(line: str | None, function: str | None) -> _Line:
    """A line's parts; of a job that kept its files to itself a line is a function."""
    own = line or ""
    of_library = own.startswith("[")
    file, _, number = own.removeprefix("[").removesuffix("]").rpartition(":")
    if not number.isdigit():
        file, number = "", ""
    return _Line(file or None, number, function, of_library)


def _without_lines(window: Window) -> Window:
    """The window, whose blocks are told apart by functions and not by lines."""
    return replace(
        window,
        line=[f"{each.file} {each.function}" for each in _lines(window.line, window.function)],
        forward_line=[
            f"{each.file} {each.function}" for each in _lines(window.forward_line, window.forward_function)
        ],
    )


def _classes(ask: Ask, window: Window) -> dict[str, str]:
    place = window.place
    return classes_of(ask, place.session_id, attempt=place.attempt, rank=place.rank)


def _shapes(ask: Ask, window: Window) -> dict[str, str]:
    place = window.place
    return shapes_of(ask, place.session_id, attempt=place.attempt, rank=place.rank)
