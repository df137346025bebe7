"""What the insight into fitting says in words. Stage: query. In: figures. Out: short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.insights.diff_text import same_text
from rankmem_aggregator.insights.fragmentation_text import differs
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.replays import Check
from rankmem_aggregator.quantity_text import bytes_text, counted

Figures = Mapping[str, Any]
Row = Mapping[str, Any]
ONE_SIZE_ABOVE: Final = 0.02
"""Up to this the real peak may be above one predicted from one size, for it to be called an upper bound."""
FASTER: Final = "nothing else grows faster than the input"


def refuse_replay(name: str, found: Check) -> None:
    """Raises CannotTell where the allocator's model does not reproduce the recording."""
    if found.reserved_difference_bytes > found.recorded_peak_bytes // 100:
        raise CannotTell(differs(name, found))


def _named(what: str, size: int | None, times: float) -> str:
    return f"{what} {size:,}" if size is not None else f"{times:g}x the {what}"


def _bytes(row: Row) -> int:
    """What a row asks of the device: what the allocator needs, else what is alive at once."""
    found: int = row["live_peak_bytes"] if row["needed_bytes"] is None else row["needed_bytes"]
    return found


def sentence(name: str, first: Row | None, figures: Figures, rows: Sequence[Row]) -> str:
    """The answer in one sentence.

    Args:
        name: of the device.
        first: the row of the first size asked for; None where none was.
    """
    what = figures["what"]
    if first is None:
        largest = _largest(figures, "largest")
        if figures["usable_bytes"] is not None and not figures["not_replayed"]:
            where = f"in {bytes_text(figures['usable_bytes'])} on {name}"
            if not largest:
                return _none_fits(figures, where)
            return f"the largest {what} that fits {where} is {largest}{_but(figures)}"
        first = next(row for row in rows if not row["is_recorded"])
    size = _named(what, first["size"], first["times"])
    verb = "needs" if first["needed_bytes"] is not None else "holds"
    text = f"{size} {verb} {bytes_text(_bytes(first))} on {name}"
    if first["fits"] is None:
        return text
    verdict = {
        "yes": "it fits in", "no": "it does not fit in", "unclear": "it may or may not fit in",
    }[first["fits"]]  # fmt: skip
    told = f"{text}: {verdict} {bytes_text(figures['usable_bytes'])}"
    return told if first["fits"] == "no" else f"{told}{_but(figures)}"


def _but(figures: Figures) -> str:
    """The step that was recorded and does not fit, if there is one."""
    if figures["higher_step"] is None or figures["higher_step_bytes"] <= figures["usable_bytes"]:
        return ""
    return f"; but step {figures['higher_step']} held {bytes_text(figures['higher_step_bytes'])}"


def _none_fits(figures: Figures, where: str) -> str:
    if figures["num_sizes"] == 1:
        return f"not even the recorded {figures['what']} fits {where}"
    return f"no {figures['what']} fits {where}"


def _largest(figures: Figures, name: str) -> str:
    """``41``, ``3.4x the recorded one``, or empty where nothing fits."""
    if (size := figures.get(f"{name}_size")) is not None:
        return f"{size:,}"
    if (times := figures.get(f"{name}_times")) is not None:
        return f"{times:g}x the largest recorded"
    return ""


def error(below: float, above: float, num_sizes: int, *, as_cuda: bool, changes: bool) -> str:
    """How far the figures may be off."""
    found = _of_one_size(below, above) if num_sizes == 1 else _of_several(below, above, num_sizes)
    if changes:
        which = "convolutions may" if num_sizes == 1 else "second derivatives of convolutions"
        found += f"; {which} take other scratch at other sizes"
    return (
        f"{found}; from at least to at most by what may be allocated otherwise on CUDA" if as_cuda else found
    )


def _of_one_size(below: float, above: float) -> str:
    bound = f"{above:.0%} above and up to {below:.0%} below"
    if round(above, 2) > ONE_SIZE_ABOVE:
        return (
            f"from one size: the real peak is up to {bound} as long as {FASTER}, and above where sparse "
            "gradients, what is made beside the model or tables of batch by batch grow as well; record a "
            "second size"
        )
    return f"from one size, an upper bound as long as {FASTER}: the real peak is at most {bound}"


def _of_several(below: float, above: float, num_sizes: int) -> str:
    how = "each recorded size was predicted from the others" if num_sizes > 2 else "from two sizes"
    within = f"within {above:.1%}, {how}"
    if f"{below:.1%}" != f"{above:.1%}":
        within = (
            f"at most {above:.1%} above and {below:.1%} below, {how}: what grows otherwise may go on as a "
            "line or with its exponent; record a larger size"
        )
    return f"{within}; if all but the size stays as it is"


AS_CUDA: Final = (
    "as on a CUDA device from Hopper on: the CPU's blocks through the model of its allocator, with "
    "cuBLAS's workspaces, 32 MiB for each thread and 1 MiB. At least has the 8.13 MiB of devices before "
    "and less for dropout, attention and what is laid out anew; at most has scratch for the gradients of "
    "biases and, with autocast, 32 bits for what may have 16 here. On an H200 the live peaks of six "
    "trainings (a GPT in fp32 and with bf16 autocast, linear layers, a ResNet-50) were within 0.15 % of "
    "what is told, and 0 to 6.2 % more was reserved, as earlier steps leave a cache. On a simulated "
    "device others were told up to 71 % too high (attention with dropout) and 16 % too low (attention "
    "written out, with autocast), all between at least and at most. Not shown: other devices, recurrent "
    "layers, compiled code. The CUDA context and NCCL are not in it"
)
MEASURED_TIMES: Final = 16
"""Of the largest recorded size: the furthest that was held against real steps."""


def notes(figures: Figures, largest: Row) -> tuple[str, ...]:
    """What to know of the table.

    Args:
        figures: those of the answer.
        largest: the row of its largest size.
    """
    found = [_from(figures), *_same_code(figures), *_capacity(figures)]
    if figures["higher_step"] is not None:
        found.append(
            f"step {figures['higher_step']} of the recording held more, "
            f"{bytes_text(figures['higher_step_bytes'])}: predictions are for steps as large as those above"
        )
    if figures["evaluates"]:
        found.append(
            "a step also evaluates, it seems: backward keeps nothing of some forward passes; they are taken "
            "to grow with the batch, and if they do not, the peak is nearer to at least (record a second "
            "size to see)"
        )
    if figures["num_sizes"] == 1 and largest["needed_bytes"] is not None:
        found.append(
            "needs and reserved are upper bounds, too: a block predicted to exceed 1 MiB takes a segment of "
            "20 MiB, and they are that much less if it stays below, as where another kernel is chosen"
        )
    if largest["times"] > MEASURED_TIMES:
        found.append(f"beyond {MEASURED_TIMES} times the largest recorded size nothing was measured")
    if figures["not_replayed"]:
        found.append(f"the allocator's part cannot be told: {figures['not_replayed']}")
    if figures["has_workspaces"]:
        found.append(AS_CUDA)
    if figures["foreach_bytes"]:
        found.append(
            "the optimizer went from tensor to tensor, as PyTorch's do on a CPU; on CUDA they take all at "
            f"once, with {bytes_text(figures['foreach_bytes'])} of scratch, which is counted, but not in at "
            "least: with foreach=False they go from tensor to tensor there, too"
        )
    return tuple(found)


def _from(figures: Figures) -> str:
    what, sizes = figures["what"], figures["recorded_sizes"]
    if sizes[0] is None:
        inputs = " and ".join(bytes_text(each) for each in figures["recorded_input_bytes"])
        source = f"from steady steps with inputs of {inputs}"
    else:
        source = f"from steady steps at {what} {' and '.join(f'{each:,}' for each in sizes)}"
        if figures["first_dimension_of"]:
            source += f" (the first dimension of {figures['first_dimension_of']})"
    if figures["num_sizes"] > 1:
        source += f": {figures['num_matched']:,} of {counted(figures['num_blocks'], 'block')} matched"
    shares = figures["shares_at_peak"]
    names = {
        "constant": "constant",
        "line": f"with the {what}",
        "square": f"with the {what}'s square",
        "cube": f"with the {what}'s cube",
        "fourth": f"with the {what}'s fourth power",
        "odd": "otherwise",
    }
    parts = ", ".join(f"{name} {shares[law]:.0%}" for law, name in names.items() if shares[law] >= 0.005)
    return f"{source}; of the peak {parts}"


def _same_code(figures: Figures) -> list[str]:
    """What other recordings call otherwise."""
    found = []
    if figures["moved"]:
        found.append(f"{same_text(figures['moved'])}; the names of other recordings come first")
    if figures["is_edited"]:
        found.append(
            "lines have other numbers in other recordings, so blocks are told apart by functions and their "
            "order alone: if the code does anything else there, this is wrong"
        )
    return found


def _capacity(figures: Figures) -> list[str]:
    if figures["usable_bytes"] is None:
        return []
    largest, surely = _largest(figures, "largest"), _largest(figures, "largest_surely")
    found = []
    if largest:
        within = "" if largest == surely else f"; {surely or 'none'} with the error against it"
        found.append(f"largest {figures['what']} that fits: {largest}{within}")
    total, usable = figures["total_bytes"], figures["usable_bytes"]
    if total != usable:
        found.append(
            f"usable {bytes_text(usable)} of {bytes_text(total)}: less 1 %, 256 MiB at least, and what the "
            "process held beyond the allocator, where recorded"
        )
    return found


def next_commands(figures: Figures, does_not_fit: bool) -> tuple[str, ...]:
    """What to run next."""
    if does_not_fit:
        return (f"rankmem whatif --rank {figures['rank']}",)
    return (f"rankmem peak --by category --rank {figures['rank']}",)
