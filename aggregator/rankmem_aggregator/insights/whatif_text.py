"""What the insight into remedies says in words. Stage: query. In: figures. Out: short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.quantity_text import bytes_text, counted

Figures = Mapping[str, Any]
Row = Mapping[str, Any]

NOT_MEASURED: Final = "not held against a training with the change"


def sentence(name: str, first: Row, figures: Figures) -> str:
    """The answer in one sentence.

    Args:
        name: of the device.
        first: the row that helps most, or of the set that fits.
    """
    peak = bytes_text(figures["peak_bytes"])
    if figures["usable_bytes"] is not None:
        return _fitting(name, first, figures, peak)
    if first["saved_bytes"] <= 0:
        return f"no remedy lowers the peak of a step on {name}, {peak}"
    saved, after = bytes_text(first["saved_bytes"]), bytes_text(first["peak_after_bytes"])
    return f"{first['what']} saves {saved} of the peak of a step on {name}: {after} instead of {peak}"


def _fitting(name: str, first: Row, figures: Figures, peak: str) -> str:
    usable = bytes_text(figures["usable_bytes"])
    if figures["fits_as_it_is"]:
        return f"the peak of a step on {name} is {peak}, which fits in {usable} as it is"
    if figures["smallest_set"] is None:
        return f"no set of measured remedies brings the peak of a step on {name}, {peak}, into {usable}"
    after = bytes_text(first["peak_after_bytes"])
    return (
        f"to fit in {usable} on {name}: {first['what']}; the peak of a step is then {after} instead of {peak}"
    )


def error(first: Row) -> str:
    """How far the figures may be off."""
    if not first["is_measured"]:
        return f"this edit was {NOT_MEASURED}"
    if "fsdp" in first["remedy"]:
        return "within 5 % where FSDP was tried"
    found = "within 1 % where it was tried; bytes that are requested, without fragmentation"
    if "checkpoint" in first["remedy"] and first["phase_after"] == "forward":
        return f"{found}; with its peak in forward a checkpoint was up to 5 % over"
    return found


def notes(figures: Figures, rows: Sequence[Row]) -> tuple[str, ...]:
    """What to know of the table."""
    found = [
        f"the peak of step {figures['step']} is in {figures['peak_phase']}, of "
        f"{counted(figures['num_blocks'], 'block')}; each peak is recomputed, since it moves"
    ]
    if not figures["is_steady"]:
        found.append("the input of the step before had another size, so that what it left behind may be odd")
    idle = [row["remedy"] for row in rows if row["saved_bytes"] <= 0]
    if idle:
        found.append(f"nothing is saved here by {', '.join(idle)}")
    if not all(row["is_measured"] for row in rows):
        found.append(f"measured, no: {NOT_MEASURED}")
    return tuple(found)
