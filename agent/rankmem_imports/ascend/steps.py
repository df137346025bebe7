"""The peak of each device of a rank in each step, from the slices of an Ascend recording's log.

Stage: readers; the process of ``rankmem import``. A step covers what came after the end of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankmem_imports.ascend.log import ACTIONS, LogSlice
from rankmem_imports.ascend.rows import Step

_ALLOC = ACTIONS.index("alloc")


class StepBuckets:
    """Adds up as the log goes by."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._ends = np.array([step.ended_ns for step in steps], np.int64)
        self._found: dict[tuple[int, int], dict[str, int]] = {}

    def add(self, log_slice: LogSlice) -> None:
        """The events of a slice."""
        if not self._steps:
            return
        step = np.searchsorted(self._ends, log_slice.time_ns, "left")
        held = log_slice.totals[:, -1]
        for number in np.unique(step[step < len(self._steps)]):
            for device in np.unique(log_slice.device[step == number]):
                at = np.flatnonzero((step == number) & (log_slice.device == device))
                top = int(at[np.argmax(held[at])])
                made = at[log_slice.action[at] == _ALLOC]
                entry = self._found.setdefault((int(device), int(number)), {"peak_bytes": -1})
                if int(held[top]) > entry["peak_bytes"]:
                    entry["peak_bytes"] = int(held[top])
                    entry["peak_seq"], entry["peak_ns"] = int(log_slice.seq[top]), int(log_slice.time_ns[top])
                entry["seq_last"], entry["last_bytes"] = int(log_slice.seq[at[-1]]), int(held[at[-1]])
                entry["allocated_bytes"] = entry.get("allocated_bytes", 0) + int(log_slice.size[made].sum())
                entry["num_allocations"] = entry.get("num_allocations", 0) + len(made)

    def rows(self, devices: Sequence[str]) -> list[dict[str, Any]]:
        """step_bucket, but for the rank."""
        return [
            {"device": devices[device], "step": self._steps[number].number} | entry
            for (device, number), entry in sorted(self._found.items())
        ]
