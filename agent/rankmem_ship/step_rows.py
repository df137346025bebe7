"""The last steps' figures of one spool, kept for its trainer: see ``rankmem_agent.spool.step_figures``.

Stage: shipper process, beside encoding. In: the rows of each batch; out: the spool's ``steps.json``, where
the trainer has asked for it. Rows that are made again after a broken connection change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rankmem_agent.spool import step_figures
from rankmem_agent.spool.step_figures import StepFigure
from rankmem_ship.pairing.rows import Rows

_TABLES: Final = ("step_bucket", "memory_bucket", "process_sample")


class StepRows:
    """The latest steps of a spool."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[int, str], StepFigure] = {}
        self._free: dict[str, int] = {}
        """Free bytes by device, as sampled last."""
        self._unused: dict[str, int] = {}
        """Held by a device's allocator and not in use, likewise."""

    def note(self, rows: Sequence[Rows]) -> None:
        """Takes the rows of a batch, and writes the file if steps have ended and the trainer wants them.

        Raises:
            OSError: it cannot be written.
        """
        if not step_figures.is_wanted(self._folder):
            return
        of = {name: batch.to_pylist() for name, batch in rows if name in _TABLES}
        self._note_devices(of.get("process_sample", []), of.get("memory_bucket", []))
        ended = of.get("step_bucket", [])
        for row in ended:
            self._note_step(row)
        if ended:
            self._known = dict(list(self._known.items())[-step_figures.ROWS_MAX :])
            step_figures.write(self._folder, self._known.values())

    def _note_devices(self, samples: Sequence[dict[str, Any]], buckets: Sequence[dict[str, Any]]) -> None:
        for row in samples:
            if row["device_free_bytes"] is not None:
                self._free[row["device"]] = row["device_free_bytes"]
        for row in buckets:
            used = row["active_last_bytes"]
            used = row["allocated_last_bytes"] if used is None else used
            if used is not None and row["reserved_last_bytes"] is not None:
                self._unused[row["device"]] = max(row["reserved_last_bytes"] - used, 0)

    def _note_step(self, row: dict[str, Any]) -> None:
        key = row["step"], row["device"]
        before = self._known.pop(key, None)
        free = self._free.get(row["device"])
        self._known[key] = StepFigure(
            step=row["step"],
            device=row["device"],
            peak_bytes=max(row["peak_bytes"], before.peak_bytes if before is not None else 0),
            last_bytes=row["last_bytes"],
            headroom_bytes=None if free is None else free + self._unused.get(row["device"], 0),
        )
