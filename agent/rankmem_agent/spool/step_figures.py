"""Figures of the last training steps of a rank, for the trainer itself: a small file in its spool.

Stage: between shipper and trainer, against the events' direction. The trainer puts an empty file there when
it wants figures; from then on the shipper, which pairs the log, replaces it by the rows of the last steps,
after each batch that ends one. So they come a second or so after a step's end, and not at all while no
aggregator can be reached. Standard library only; no query, no lock.

The file is JSON: ``{"format": "rankmem-steps", "version": 1, "steps": [[step, device, peak_bytes, last_bytes,
headroom_bytes], ...]}``, a row for each device of a step, the latest last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from rankmem_agent.signals import raise_of_handler
from rankmem_agent.spool.whole_file import write_whole

NAME: Final = "steps.json"
FORMAT: Final = "rankmem-steps"
VERSION: Final = 1
ROWS_MAX: Final = 512
"""Kept in the file, of all devices: 30 KiB, and more steps than the fastest training makes in a second."""


class StepFigure(NamedTuple):
    """A device of a rank in a training step."""

    step: int
    """Number, from 0, as in the table ``step_bucket``."""
    device: str
    peak_bytes: int
    """Highest requested bytes after an event in it: exact, unless events were lost."""
    last_bytes: int
    """Requested bytes after its last event."""
    headroom_bytes: int | None
    """Free on the device, and held unused by the allocator, as last sampled before the step's end was paired;
    None where that is not known."""


def want(spool_dir: Path) -> None:
    """Asks the shipper for figures of the steps that end from now on.

    Raises:
        OSError: the folder cannot be written.
    """
    (spool_dir / NAME).touch(mode=0o600)


def is_wanted(spool_dir: Path) -> bool:
    """Whether the trainer has asked."""
    return (spool_dir / NAME).exists()


def write(spool_dir: Path, figures: Iterable[StepFigure]) -> None:
    """Replaces the file, whole.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps({"format": FORMAT, "version": VERSION, "steps": list(figures)})
    write_whole(spool_dir / NAME, text.encode())


def read(spool_dir: Path) -> list[StepFigure]:
    """The figures there are, the latest last; none before the first, or from a version that is not known."""
    try:
        data = (spool_dir / NAME).read_bytes()
    except OSError as error:
        raise_of_handler(error)
        return []
    found = json.loads(data) if data else {}
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        return []
    return [StepFigure(*row) for row in found["steps"]]
