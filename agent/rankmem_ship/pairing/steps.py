"""Steps: a device's highest and last totals in each training step, and what was allocated in it.

Stage: pairing; shipper process, pure functions over arrays. A part of a step is what lies between two STEP
records; a step that several optimizers end has several. What lies after the last STEP is carried on in
:attr:`PairingState.steps`, and never sent: it belongs to no step yet.
"""

from __future__ import annotations

import numpy as np

from rankmem_agent.spool.layout import Kind
from rankmem_ship.pairing.points import Points, Totals
from rankmem_ship.pairing.state import STEP_DTYPE, Array, joined
from rankmem_ship.spool_reader.segments import named


def steps_of(
    open_parts: Array, points: Points, totals: Totals, records: Array, seq: Array
) -> tuple[Array, Array]:
    """The parts of steps that end in a batch, and those that go on after it.

    Args:
        open_parts: STEP_DTYPE, one for each device with events since the last STEP.
        records, seq: of the batch.

    Returns:
        Two arrays of STEP_DTYPE in order of device and seq; ``step`` is set in the first.
    """
    ends = np.flatnonzero(records["kind"] == Kind.STEP)
    at = np.flatnonzero(points.is_event)
    parts = joined([open_parts, _parts(points, totals, at, seq[ends])]) if len(at) else open_parts.copy()
    parts = _merged(parts)
    over = parts["part"] < len(ends)
    ended, rest = parts[over], parts[~over]
    ended["step"] = named(records, Kind.STEP)["step"][ends[ended["part"]]].astype(np.int64)
    rest["part"] = 0
    return ended, rest


def _parts(points: Points, totals: Totals, at: Array, end_seq: Array) -> Array:
    """The sums of a batch's events, a row for each device and part."""
    at = at[np.argsort(points.device[at], kind="stable")]
    device, seq, requested = points.device[at], points.seq[at], totals.requested[at]
    part = np.searchsorted(end_seq, seq)
    begins = _starts(device, part)
    lengths = np.diff(np.append(begins, len(at)))
    top = np.maximum.reduceat(requested, begins)
    hits = np.flatnonzero(requested == np.repeat(top, lengths))
    first_hit = hits[np.searchsorted(hits, begins)]
    made = points.allocates[at]
    rows = np.zeros(len(begins), STEP_DTYPE)
    rows["device"], rows["part"] = device[begins], part[begins]
    rows["seq_last"], rows["last"] = seq[begins + lengths - 1], requested[begins + lengths - 1]
    rows["peak"], rows["peak_seq"], rows["peak_ns"] = top, seq[first_hit], points.time_ns[at][first_hit]
    rows["allocated"] = np.add.reduceat(np.where(made, points.size[at], 0), begins)
    rows["allocations"] = np.add.reduceat(made.astype(np.int64), begins)
    return rows


def _merged(parts: Array) -> Array:
    """One row for each device and part; rows of the same one are in order of the log."""
    parts = parts[np.lexsort((parts["seq_last"], parts["part"], parts["device"]))]
    begins = _starts(parts["device"], parts["part"])
    if len(begins) == len(parts):
        return parts
    lengths = np.diff(np.append(begins, len(parts)))
    top = np.maximum.reduceat(parts["peak"], begins)
    hits = np.flatnonzero(parts["peak"] == np.repeat(top, lengths))
    rows = parts[hits[np.searchsorted(hits, begins)]]
    for name in ("seq_last", "last"):
        rows[name] = parts[name][begins + lengths - 1]
    for name in ("allocated", "allocations"):
        rows[name] = np.add.reduceat(parts[name], begins)
    return rows


def _starts(device: Array, part: Array) -> Array:
    differs = np.ones(len(device), np.bool_)
    differs[1:] = (device[1:] != device[:-1]) | (part[1:] != part[:-1])
    return np.flatnonzero(differs)
