"""What a comparison of two sessions says in words. Stage: query. In: figures. Out: sentences, or Markdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rankmem_aggregator.insights.renamed_modules import WITHOUT_CLASS
from rankmem_aggregator.quantity_text import bytes_text, counted

if TYPE_CHECKING:
    from rankmem_aggregator.insights.answer import Answer
    from rankmem_aggregator.insights.compare import Compared, Judged
    from rankmem_aggregator.insights.moved import Pair
    from rankmem_aggregator.insights.renamed_classes import Replaced
    from rankmem_aggregator.insights.renamed_modules import Moved

WORDS: Final = {
    "peak": "peak of a step",
    "highest": "highest step",
    "held": "held at a step's end",
    "allocated": "allocated in a step",
    "reserved": "reserved (not judged)",
}
MARKS: Final = {"worse": " ⚠", "better": " ✓", "unclear": " ?"}
PARTS_IN_MARKDOWN: Final = 6
MOVES_MAX: Final = 6
"""Of what has moved, in a note."""
ARGUMENTS_MAX: Final = 4
"""Of the model's arguments, in a note."""


def change_text(num_bytes: float, base: float) -> str:
    """A difference with its sign, and its share: ``+1.00 MiB (+2.00%)``."""
    size = round(num_bytes)
    sign = "+" if size > 0 else ""
    share = f" ({num_bytes / base:+.2%})" if base else ""
    return f"{sign}{bytes_text(size)}{share if size else ''}"


def sentence(own: Sequence[Judged], figures: Mapping[str, Any]) -> str:
    """The answer, from the figures of the rank that changed most for the worse."""
    several = figures["num_ranks"] > 1
    named = [each for each in own if each.verdict in ("worse", "unclear")]
    ranks = figures["ranks_worse"] or figures["ranks_unclear"]
    whose = f"rank {own[0].rank}: " if several else ""
    others = len(ranks) - 1
    more = f", and so {'is' if others == 1 else 'are'} {counted(others, 'more rank')}" if others > 0 else ""
    if named:
        first = named[0]
        change = change_text(first.figure.difference, first.figure.base)
        if first.verdict == "unclear":
            hidden = f"within what varying steps hide ({bytes_text(round(3 * first.figure.error))})"
            return (
                f"{whose}{WORDS[first.what]} differs by {change}, beyond the limit of "
                f"{bytes_text(round(first.limit))}, but {first.unclear or hidden}: record more steps"
            )
        return f"{whose}{_changed(first)}{more}"
    better = figures["ranks_better"]
    peak = next(each for each in own if each.what == "peak")
    if better:
        most = None if several else _most_better(own)
        if most is None:
            return f"{counted(len(better), 'rank')} better at equal input, none worse{_but_higher(own)}"
        return f"{_changed(most)}; nothing is worse{_but_higher(own)}"
    sizes = [bytes_text(round(each)) for each in (peak.figure.base, peak.figure.head)]
    both = f"{sizes[0]} in both" if sizes[0] == sizes[1] else f"{sizes[0]}, then {sizes[1]}"
    return f"{whose}nothing is worse at equal input: peak of a step {both}{_but_higher(own)}"


def is_higher(each: Judged) -> bool:
    """Whether it is a highest step that is higher than the other side's, and has no verdict."""
    return each.what == "highest" and each.verdict is None and each.figure.difference > each.limit


def _but_higher(own: Sequence[Judged]) -> str:
    """That the highest step is higher, where that is not judged."""
    for each in own:
        if is_higher(each):
            both = f"{bytes_text(round(each.figure.base))} to {bytes_text(round(each.figure.head))}"
            return f"; but the highest step went from {both}"
    return ""


def highest_notes(own: Sequence[Judged], figures: Mapping[str, Any]) -> list[str]:
    """Which the highest steps are, where they say something that the medians do not."""
    both = (
        f"the highest step of base is {figures['base_highest_step']} with "
        f"{bytes_text(figures['base_highest_step_bytes'])}, of head {figures['head_highest_step']} with "
        f"{bytes_text(figures['head_highest_step_bytes'])}"
    )
    peak = next(each.figure.difference for each in own if each.what == "peak")
    for each in own:
        if each.what == "highest" and each.figure.difference > max(each.limit, peak + each.limit):
            unjudged = "" if each.verdict else "; no verdict without a limit, as --limit peak=2%"
            return [f"{both}; peak of a step is a median and does not show it{unjudged}"]
    higher = figures["head_highest_step_bytes"] > figures["base_highest_step_bytes"]
    if figures["is_highest_beyond"] and higher:
        return [f"{both}; the latter's input lies beyond those of base, so it is compared with none"]
    return []


def _changed(each: Judged) -> str:
    """That a figure is better or worse, and by how much."""
    both = f"{bytes_text(round(each.figure.base))} to {bytes_text(round(each.figure.head))}"
    change = change_text(each.figure.difference, each.figure.base)
    return f"{WORDS[each.what]} is {each.verdict} at equal input: {both}, {change}"


def _most_better(own: Sequence[Judged]) -> Judged | None:
    """The judged figure that fell most; None where those of another device did."""
    judged = [each for each in own if each.verdict == "better"]
    return min(judged, key=lambda each: each.figure.difference, default=None)


def error(own: Sequence[Judged], by: str) -> str:
    """How far a difference may be off."""
    peak = next(each for each in own if each.what == "peak")
    least = max(3 * peak.figure.error, 1)
    given = (
        "; shapes of inputs are not recorded for every step: by blocks of category input"
        if by == "batch_bytes"
        else ""
    )
    return f"differences of the peak from {bytes_text(round(max(least, peak.limit)))} on count{given}"


def no_overlap(rank: int, base: Any, head: Any, by: str) -> str:
    """Why steps of equal input cannot be compared."""

    def text(size: float) -> str:
        return counted(int(size), "element") if by == "input_elements" else bytes_text(int(size))

    ranges = [
        text(each.min()) if each.min() == each.max() else f"{text(each.min())} to {text(each.max())}"
        for each in (base, head)
    ]
    return (
        f"the inputs of rank {rank} do not overlap: {ranges[0]} a step in base, {ranges[1]} in head; "
        "run both with the same batch"
    )


def no_common_argument(base: Collection[str], head: Collection[str]) -> str:
    """Why inputs cannot be compared at all."""
    names = [
        ", ".join(sorted(side)[:ARGUMENTS_MAX]) + (", ..." if len(side) > ARGUMENTS_MAX else "")
        for side in (base, head)
    ]
    return (
        f"the model's arguments are others in head ({names[1]}) than in base ({names[0]}), so steps of equal "
        "input cannot be found"
    )


def _argument_notes(figures: Mapping[str, Any]) -> list[str]:
    """What the comparison by the model's arguments leaves out or takes for granted."""

    def some(name: str) -> str:
        own = figures.get(name, [])
        more = f" and {len(own) - ARGUMENTS_MAX} more" if len(own) > ARGUMENTS_MAX else ""
        return f"{', '.join(own[:ARGUMENTS_MAX])}{more}"

    found = []
    if some("left_out") or some("retyped"):
        without = f", without {some('left_out')}" if some("left_out") else ""
        types = f"; other types: {some('retyped')}" if some("retyped") else ""
        found.append(
            f"inputs are compared by the elements of the arguments that both sides have{without}{types}"
        )
    if some("renamed"):
        found.append(f"arguments taken for the same under another name: {some('renamed')}")
    if some("other_lists"):
        found.append(
            f"lists among the arguments are longer on one side ({some('other_lists')}): taken for more of "
            "the same, not for another argument"
        )
    return found


def moved(pairs: Sequence[Pair], *, is_unclear: bool | None = None) -> list[str]:
    """What has other names in head, each once: ``train.py -> src/train.py``, ``class Net -> Model``.

    Args:
        is_unclear: only that of which it is known, or is not, which is which.
    """
    found: dict[str, None] = {}
    for pair in pairs:
        for move in pair.moves():
            several = "" if move.before.startswith("module ") else f"several {pair.name().function}; "
            unclear = f" ({several}it is not known which is which)" if move.is_unclear else ""
            if is_unclear is None or move.is_unclear == is_unclear:
                found[f"{move.before} -> {move.now}{unclear}"] = None
    return list(found)


def unmatched(modules: Moved) -> list[str]:
    """Modules of one side that may be some of the other side, and were not found to be; else nothing."""
    if not (modules.gone and modules.new):
        return []
    gone, new = modules.alone_told()
    return [*(f"{each} of base" for each in gone), *(f"{each} of head" for each in new)]


def replaced(classes: Replaced, figure: Compared) -> str:
    """What the modules of a class, and of the one in its places, hold at the peak."""
    base, head = round(figure.base), round(figure.head)
    return (
        f"{classes.base} of base, {classes.head} of head in {counted(len(classes.modules), 'module')}: "
        f"{bytes_text(base)} to {bytes_text(head)} at the peak, {change_text(head - base, base)}"
    )


def same_text(moves: Sequence[str]) -> str:
    """What was taken for the same under another name, and by what that was told.

    Args:
        moves: as :func:`moved` has them, one at least.
    """
    more = f" and {len(moves) - MOVES_MAX} more" if len(moves) > MOVES_MAX else ""
    of_classes = any(each.startswith("class ") for each in moves)
    classes = "; classes by where their modules are and by the operators of their code" if of_classes else ""
    of_modules = [each for each in moves if each.startswith("module ")]
    without_class = [each for each in of_modules if WITHOUT_CLASS in each]
    modules = ""
    if len(of_modules) > len(without_class):
        modules += "; modules by their classes, the shapes of their parameters and their code"
    if without_class:
        modules += f"; modules {WITHOUT_CLASS} by the shapes of all their parameters and their code alone"
    return (
        f"taken for the same, moved or renamed: {', '.join(moves[:MOVES_MAX])}{more}; told by category, "
        f"operator and module, and where these are the same by the function or the file{classes}{modules}"
    )


def notes(figures: Mapping[str, Any]) -> list[str]:
    """Further sentences."""
    steps = f"{counted(figures['base_steps'], 'step')} of base, {figures['head_steps']:,} of head"
    found = [f"compared {steps}, after warm-up; parts are those of the peak, without line numbers"]
    if figures["base"] == figures["head"]:
        found.append("base and head are the same session, so nothing can differ")
    if figures["num_parts"] > figures["num_parts_shown"]:
        found.append(
            f"{figures['num_parts']:,} parts differ, by {change_text(figures['parts_difference_bytes'], 0)} "
            "together; the largest are shown"
        )
    found += _argument_notes(figures)
    unknown = max(figures["base_steps_unknown"], figures["head_steps_unknown"])
    if unknown:
        found.append(f"left out {counted(unknown, 'step')} whose input is not recorded")
    if figures["moved"]:
        found.append(same_text(figures["moved"]))
    if figures.get("replaced"):
        which = "; ".join(figures["replaced"][:MOVES_MAX])
        found.append(f"classes in the same places that do other things, and are not matched: {which}")
    if figures.get("unmatched"):
        which = ", ".join(figures["unmatched"][:MOVES_MAX])
        more = len(figures["unmatched"]) - MOVES_MAX
        found.append(f"modules found on one side only: {which}{f' and {more} more' if more > 0 else ''}")
    return found


def part_text(row: Mapping[str, Any]) -> str:
    """Where the bytes of a part are from: category, function, operator and module, as far as known."""
    place = " ".join(filter(None, (row["file"], row["function"])))
    before = row["moved_from"] and f"before: {row['moved_from']}"
    return " · ".join(filter(None, (row["category"], place, before, row["operator"], row["module"])))


def markdown(answer: Answer) -> str:
    """The answer for a pull request: a table of figures, and what holds the difference."""
    cannot = answer.verdict == "cannot tell"
    head = f"**cannot tell:** {answer.sentence}" if cannot else f"**{answer.sentence}**"
    rows = answer.rows.to_pylist()
    lines = [head]
    if rows:
        lines += ["", "| rankmem | base | head | change |", "|---|---:|---:|---:|"]
    for row in rows:
        if row["what"] != "part":
            change = change_text(row["difference_bytes"], row["base_bytes"])
            sizes = f"{bytes_text(row['base_bytes'])} | {bytes_text(row['head_bytes'])}"
            lines.append(
                f"| {WORDS[row['what']]} | {sizes} | {change}{MARKS.get(row['verdict'] or '', '')} |"
            )
    parts = [row for row in rows if row["what"] == "part"][:PARTS_IN_MARKDOWN]
    lines += [""] if parts else []
    lines += [f"- {change_text(row['difference_bytes'], 0)} `{_code(part_text(row))}`" for row in parts]
    lines += ["", f"{answer.gaps_text()}; {answer.error}" if answer.error else answer.gaps_text()]
    return "\n".join([*lines, *answer.notes]) + "\n"


def _code(text: str) -> str:
    """Text between backticks: names are data from outside."""
    return " ".join(text.replace("`", "'").split())
