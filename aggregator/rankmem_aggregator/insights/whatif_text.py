"""What the insight into remedies says in words. Stage: query. In: figures. Out: short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.quantity_text import bytes_text, counted

Figures = Mapping[str, Any]
Row = Mapping[str, Any]

OUTSIDE: Final = "outside of forward, backward and the optimizer's step"
NOT_MEASURED: Final = "not held against a training with the change"
IF_NOT_DONE: Final = ", if not done already"
ON_SHARDING: Final = "what the ranks shard already, which this recording does not tell"
STATE_REMEDIES: Final = ("state16", "state8", "offload")
IN_BOUNDS: Final = "between least and most in 17 trainings"
BEYOND_BOUNDS: Final = "torchao's 8 bits without its compiler held up to 65 % more"
ON_OPTIMIZER: Final = (
    "how the optimizer computes: at least with nothing beside its state, as fused kernels and a step on the "
    "host do, at most with the state of one parameter unpacked and each result a tensor"
)
IF_UNUSED: Final = ", if the next step does not use them"
ON_CHECKPOINT: Final = "when a checkpoint lets go of a block within its forward"
SHARDED: Final = {
    "state": "the optimizer's state seems",
    "gradients": "gradients and state seem",
    "parameters": "parameters, gradients and state seem",
}
"""What seems to be sharded, by ``figures.sharded``."""
DEPENDS: Final = {
    "let-go": "whether this step still uses what the one before left",
    "accumulate": "whether blocks as large as a weight are copies of it, which smaller parts do not shrink",
    "foreach": "what this optimizer makes for one parameter, if it has foreach at all",
    **dict.fromkeys(("zero1", "zero2", "fsdp"), ON_SHARDING),
}
"""What is not recorded, of which the range of a remedy is made."""


def sentence(name: str, rows: Sequence[Row], figures: Figures) -> str:
    """The answer in one sentence.

    Args:
        name: of the device.
        rows: of the remedies; first what helps most, or the set that fits.
    """
    first, peak = rows[0], bytes_text(figures["peak_bytes"])
    if figures["usable_bytes"] is not None:
        return _fitting(name, first, figures, peak)
    if first["saved_bytes"] <= 0:
        may = next((row for row in rows if _may_save(row, figures)), None)
        if may is not None:
            what = f"{may['what']} may bring it to {_after(may)}"
            return f"no remedy is sure to lower the peak of a step on {name}, {peak}: {what}"
        return f"no remedy lowers the peak of a step on {name}, {peak}"
    saved, least = bytes_text(first["saved_bytes"]), "at least " if _is_open(first) else ""
    what = f"{first['what']} saves {least}{saved} of the peak of a step on {name}"
    return f"{what}: {_after(first)} instead of {peak}"


def _fitting(name: str, first: Row, figures: Figures, peak: str) -> str:
    usable = bytes_text(figures["usable_bytes"])
    if figures["fits_as_it_is"]:
        return f"the peak of a step on {name} is {peak}, which fits in {usable} as it is"
    beyond = f"step {figures['higher_step']} held {bytes_text(figures['higher_step_bytes'] or 0)}"
    does_not = (figures["higher_step_bytes"] or 0) > figures["usable_bytes"]
    if figures["peak_bytes"] <= figures["usable_bytes"]:
        own = f"the peak of step {figures['step']} is {peak}"
        return f"{beyond} on {name}, which does not fit in {usable}; {own}"
    if figures["smallest_set"] is None:
        peak_of = f"the peak of a step on {name}, {peak}"
        return f"no set of measured remedies is sure to bring {peak_of}, into {usable}"
    text = (
        f"to fit in {usable} on {name}: {first['what']}; the peak of a step is then {_after(first)} "
        f"instead of {peak}"
    )
    return f"{text}; but {beyond}, and these figures do not cover it" if does_not else text


def _is_open(row: Row) -> bool:
    return bool(row["peak_after_least_bytes"] < row["peak_after_bytes"])


def _may_save(row: Row, figures: Figures) -> bool:
    return bool(row["peak_after_least_bytes"] < figures["peak_bytes"])


def _after(row: Row) -> str:
    """The peak then, with the least where that is not known."""
    most = bytes_text(row["peak_after_bytes"])
    return f"{bytes_text(row['peak_after_least_bytes'])} to {most}" if _is_open(row) else most


def error(first: Row) -> str:
    """How far the figures may be off.

    Args:
        first: the row of the sentence.
    """
    names = first["remedy"].split(" + ")
    found = _tried(first, names)
    if not _is_open(first):
        return found
    depends = [
        text
        for text, is_meant in (
            (ON_CHECKPOINT, any(map(_is_checkpoint, names))),
            (ON_OPTIMIZER, any(name in STATE_REMEDIES for name in names)),
            *((text, name in names) for name, text in DEPENDS.items()),
        )
        if is_meant
    ]
    return f"{found}; the range depends on {', and on '.join(depends)}"


def _tried(first: Row, names: Sequence[str]) -> str:
    """How near the edits came where they were tried."""
    if not first["is_measured"]:
        return f"this edit was {NOT_MEASURED}"
    if "fsdp" in names:
        return "within 5 % where FSDP was tried"
    is_of_state = any(name in STATE_REMEDIES for name in names)
    tried = IN_BOUNDS if is_of_state else "within 1 % where it was tried"
    if "state8" in names:
        tried += f"; {BEYOND_BOUNDS}"
    found = f"{tried}; bytes that are requested, without fragmentation"
    if "let-go" in names:
        found += "; only if this step does not use what is let go of"
    return found


def _is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoint")


def _short(row: Row) -> str:
    """The name of a remedy; of a checkpoint with what is under it, as there may be several."""
    return str(row["what"] if _is_checkpoint(row["remedy"]) else row["remedy"])


def notes(figures: Figures, rows: Sequence[Row]) -> tuple[str, ...]:
    """What to know of the table."""
    phase = figures["peak_phase"]
    where = OUTSIDE if phase == "other" else f"in {phase}"
    found = [
        f"the peak of step {figures['step']} is {where}, of {counted(figures['num_blocks'], 'block')}; "
        "each peak is recomputed, since it moves"
    ]
    if not figures["is_steady"]:
        found.append("the input of the step before had another size, so that what it left behind may be odd")
    if figures["higher_step"] is not None:
        held = bytes_text(figures["higher_step_bytes"])
        found.append(f"step {figures['higher_step']} held more, {held}: these figures do not cover it")
    if figures["sharded"] in SHARDED:
        found.append(f"{SHARDED[figures['sharded']]} to be sharded over ranks already")
    if not any(row["remedy"] == "fsdp" for row in rows):
        found.append(f"no FSDP: the parameters of attempt {figures['attempt']} are not known by name")
    idle = [_short(row) for row in rows if row["saved_bytes"] <= 0 and not _may_save(row, figures)]
    if idle:
        found.append(f"nothing is saved here by {', '.join(idle)}")
    named = [row["remedy"] for row in rows if row["remedy"] in STATE_REMEDIES and _is_open(row)]
    if named:
        beyond = f"; {BEYOND_BOUNDS}" if "state8" in named else ""
        found.append(f"the range of {', '.join(named)} depends on {ON_OPTIMIZER}{beyond}")
    open_rows = [row["remedy"] for row in rows if row["remedy"] in DEPENDS and _is_open(row)]
    for depends in dict.fromkeys(DEPENDS[remedy] for remedy in open_rows):
        alike = [remedy for remedy in open_rows if DEPENDS[remedy] == depends]
        found.append(f"the range of {', '.join(alike)} depends on {depends}")
    if not all(row["is_measured"] for row in rows):
        found.append(f"measured, no: {NOT_MEASURED}")
    return tuple(found)
