"""The state of pairing between two batches: one frozen value, made of arrays.

Stage: pairing. :class:`PairingState` is a function of the records fed so far and of nothing else, except
for the fields marked *sent*, which record what earlier batches carried. It is never changed in place: a batch
makes a new one, so the state before a batch can be kept and gone back to for nothing. The checkpoint
stores it as it is (plain arrays and numbers). Runs in the shipper process.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankmem_agent.spool.layout import Kind
from rankmem_ship.spool_reader.segments import named

Array = npt.NDArray[Any]

ABSENT: Final = -1
"""Stands for "not known" in the int64 columns of blocks and calls: times, sequence numbers, steps."""


class Known(enum.IntEnum):
    """By what a block's operator, module, phase and stacks are known: ``allocation_record.attribution``."""

    AS_GIVEN = 0
    """Older than the recording: what is known of it came with it. NULL."""
    OBSERVED = 1
    """Its call was observed, or it was made outside of calls while calls were observed."""
    TEMPLATE = 2
    """Its step ran as a whole like an earlier, observed one: all is that of the block ``like``."""
    TEMPLATE_PREFIX = 3
    """Likewise, but the step differed later, or its end is not recorded."""
    EVIDENCE = 4
    """What was read at its allocation, without what goes on around it."""
    NONE = 5
    """Nothing was observed, or the record of its call is lost."""
    WAITS = 6
    """Not known before its part of the step has ended; no row goes out with it."""


BLOCK_DTYPE: Final = np.dtype(
    [
        ("key", "<u8"),  # device and address, see devices.block_keys
        ("allocation_id", "<i8"),
        ("address", "<u8"),
        ("size", "<i8"),
        ("stream", "<i8"),
        ("pool", "<u8"),
        ("call_id", "<u8"),
        ("forward_call_id", "<u8"),
        ("allocated_ns", "<i8"),
        ("free_requested_ns", "<i8"),
        ("free_requested_seq", "<i8"),
        ("freed_ns", "<i8"),
        ("freed_seq", "<i8"),
        ("step", "<i8"),
        ("like", "<i8"),  # allocation_id of the block of an earlier step that it is like
        ("operator", "<u4"),  # string ids of this spool; 0: none
        ("module", "<u4"),
        ("annotation", "<u4"),
        ("stack", "<u4"),
        ("forward_stack", "<u4"),
        ("phase", "<i2"),  # layout.Phase, -1: none
        ("device", "<i2"),  # dense number, index into PairingState.devices
        ("preexisting", "?"),
        ("recomputed", "?"),
        ("sent", "?"),  # its allocation_record went out
        ("sent_free_requested", "?"),  # and it carried free_requested
        ("by", "u1"),  # Known
        ("spare", "V3"),  # to 152 bytes, so that columns are aligned
    ]
)
"""A block: alive, or freed while its call (and so its row) is still open."""

CALL_DTYPE: Final = np.dtype(
    [
        ("call_id", "<u8"),
        ("started", "<i8"),
        ("step", "<i8"),
        ("forward_sequence", "<i8"),
        ("allocated_bytes", "<i8"),
        ("freed_bytes", "<i8"),
        ("allocations", "<i8"),
        ("node", "<u8"),  # the outermost autograd node it runs in, see Kind.CALL_BEGIN; 0: none
        ("operator", "<u4"),
        ("module", "<u4"),  # that of its thread when it began
        ("annotation", "<u4"),  # name of the user's innermost open range on its thread; 0: none
        ("thread", "<u4"),
        ("forward_thread", "<i4"),
        ("stack", "<u4"),  # that of its first block, where that has one; 0: not known before it ends
        ("phase", "<i2"),
        ("spare", "V6"),  # to 96 bytes, so that columns are aligned
    ]
)
"""A call that began and has not ended."""

RANGE_DTYPE: Final = np.dtype(
    [
        ("key", "<u8"),  # thread and first sequence number
        ("last", "<i8"),
        ("call_id", "<u8"),
        ("end_seq", "<i8"),
        ("module", "<u4"),  # as in the call's row; likewise annotation
        ("annotation", "<u4"),
        ("stack", "<u4"),
        ("spare", "V4"),
    ]
)
"""The autograd sequence numbers that an ended call made: how backward finds its forward call."""

MARKER_DTYPE: Final = np.dtype(
    [
        ("marker_id", "<u8"),
        ("started_ns", "<i8"),
        ("name", "<u4"),
        ("thread", "<u4"),
        ("depth", "<i4"),
        ("kind", "u1"),
        ("in_doubt", "?"),
    ]
)
"""A marker that is open; in_doubt: records are missing since it began, so it may have ended."""

THREAD_DTYPE: Final = np.dtype([("thread", "<u4"), ("phase", "<i2"), ("spare", "V2"), ("seq", "<i8")])
"""A thread that began calls: the phase of its last one, and where in the log that began."""

MODULE_DTYPE: Final = np.dtype(
    [
        ("path", "<u4"),
        ("class_name", "<u4"),
        ("sent", "?"),
        ("frozen", "?"),  # its parameters want no gradient, see Kind.MODULE
        ("spare", "V6"),
    ]
)
"""A module that ran."""

WEIGHT_DTYPE: Final = np.dtype(
    [
        ("text", "<u4"),  # string id of its JSON
        ("stack", "<u4"),
        ("size", "<i8"),
        ("grad_size", "<i8"),
        ("sent", "?"),
        ("spare", "V7"),
    ]
)
"""A parameter, as it was last recorded."""

CATEGORY_DTYPE: Final = np.dtype(
    [
        ("allocation_id", "<i8"),
        ("node", "<u8"),  # the autograd node it was made in; 0: none
        ("told_seq", "<i8"),  # seq of the last category_change sent; ABSENT: none
        ("category", "u1"),  # layout.Category
        ("source", "u1"),  # why, see rankmem_ship.pairing.categories.Source
        ("frozen", "?"),  # a parameter that wants no gradient
        ("recorded", "?"),  # autograd was recording when it was made
        ("runs", "u1"),  # what its life has seen so far, see rankmem_ship.pairing.categories_lives
        ("idle", "u1"),
        ("engines", "u1"),
        ("steps", "u1"),
        ("line", "<u8"),  # stack and operator of its call; 0: not known
        ("would", "u1"),  # layout.Category that it has if its life allows it
        ("doubtful", "?"),  # it may be made from gradients
        ("spare", "V2"),
        ("like_steps", "<i4"),  # the life of the block that it is like, see LIFE_DTYPE; ABSENT: it lives
        ("like_place", "<i4"),
        ("like_thread", "<u4"),
    ]
)
"""The category of a living block."""

PART_DTYPE: Final = np.dtype(
    [
        ("thread", "<u4"),
        ("nodes_of", "<u4"),  # the other thread whose autograd nodes ran in its last part; 0: none did
        ("step", "<i8"),
        ("follows", "<i8"),  # the step whose part it is like so far; ABSENT: none
        ("num_blocks", "<i8"),  # so far
        ("is_open", "?"),  # it goes on, and was compared from its first block on
        ("spare", "V7"),
    ]
)
"""A thread's part of a step, see rankmem_ship.pairing.comparing."""

COMPARED_DTYPE: Final = np.dtype(
    [
        ("allocation_id", "<i8"),
        ("part", "<i8"),  # its step
        ("follows", "<i8"),  # the step whose part this one is like up to here; ABSENT: none
        ("thread", "<u4"),
        ("place", "<u4"),  # in the part, from 1
        ("died_steps", "<i4"),  # its life, see LIFE_DTYPE; ABSENT: it lives
        ("died_place", "<i4"),
        ("died_thread", "<u4"),
        ("spare", "V4"),
    ]
)
"""A block that was compared and whose row waits."""

TEMPLATE_DTYPE: Final = np.dtype(
    [
        ("allocation_id", "<i8"),  # of the block that was observed
        ("step", "<i8"),  # of its part; of all parts like it, once that is known
        ("thread", "<u4"),
        ("place", "<u4"),  # in the part, from 1
        ("operator", "<u4"),  # string ids; 0: none
        ("module", "<u4"),
        ("annotation", "<u4"),
        ("stack", "<u4"),
        ("forward_stack", "<u4"),
        ("other_operator", "<u4"),  # another one seen in this place; 0: none
        ("other_module", "<u4"),
        ("died_steps", "<i4"),
        ("died_place", "<i4"),
        ("died_thread", "<u4"),
        ("phase", "<i2"),
        ("recomputed", "?"),
        ("category", "u1"),
        ("times", "u1"),  # that the part was observed as a whole; 0: it goes on
        ("spare", "V3"),
    ]
)
"""A place in a part, and what was observed there."""

LIFE_DTYPE: Final = np.dtype(
    [
        ("allocation_id", "<i8"),
        ("steps", "<i4"),  # that ended in it
        ("place", "<i4"),  # blocks that the thread that ends steps had made in the step of its death
        ("thread", "<u4"),  # on which it died
        ("spare", "V4"),
    ]
)
"""The life of a block that has died."""

STEP_END_DTYPE: Final = np.dtype([("seq", "<i8"), ("thread", "<u4"), ("spare", "V4")])
"""A STEP record."""

TAG_DTYPE: Final = np.dtype(
    [
        ("allocation_id", "<i8"),
        ("seq", "<i8"),
        ("time_ns", "<i8"),  # host time
        ("device", "<i2"),  # dense number
        ("category", "u1"),  # layout.Category
        ("source", "u1"),  # rankmem_ship.pairing.categories.Source
        ("since_alloc", "?"),  # the block has meant this since it was allocated
        ("frozen", "?"),  # a parameter that wants no gradient
        ("spare", "V2"),
    ]
)
"""A TAG record whose block is known."""

LINE_DTYPE: Final = np.dtype([("line", "<u8"), ("seq", "<i8")])
"""A line of the script that makes data, and since where in the log that is known."""

DEVICE_DTYPE: Final = np.dtype(
    [
        ("code", "<u2"),  # device_type << 8 | device_index
        ("requested", "<i8"),
        ("reserved", "<i8"),
        ("allocated", "<i8"),  # the last COUNTERS; ABSENT before the first
        ("active", "<i8"),
        ("allocated_top", "<i8"),  # the last PEAKS; ABSENT before the first
        ("active_top", "<i8"),
        ("last_call", "<u8"),  # call of its last event
        ("unexplained", "<i8"),  # replay minus allocator at the last comparable COUNTERS
        ("name_id", "<u4"),  # string id of its DEVICE record; 0: none came
        ("moves", "?"),  # events after the last COUNTERS change its figures
    ]
)
"""A device's running totals, in order of first appearance."""

STEP_DTYPE: Final = np.dtype(
    [
        ("device", "<i8"),  # dense number
        ("part", "<i8"),  # how many STEPs of the batch lie before it
        ("step", "<i8"),  # where it has ended
        ("seq_last", "<i8"),  # its last event
        ("peak", "<i8"),  # highest requested bytes after an event in it, the first such event and its time
        ("peak_seq", "<i8"),
        ("peak_ns", "<i8"),
        ("last", "<i8"),  # requested bytes after the last event
        ("allocated", "<i8"),
        ("allocations", "<i8"),
    ]
)
"""A device between two STEP records, see rankmem_ship.pairing.steps."""


def rows_at(table: Array, at: Array | slice) -> Array:
    """The rows of a structured array at these indices, or where a mask is true; a copy.

    As bytes: numpy copies structured rows field by field, ten to twenty times slower (2.4, measured).
    """
    rows: Array = np.ascontiguousarray(table).view(f"V{table.dtype.itemsize}")[at].view(table.dtype)
    return rows


def indices(wanted: Array, among: Array) -> Array:
    """Index of each allocation id among others, which are there once each; ABSENT for one that is not."""
    if not len(among):
        return np.full(len(wanted), ABSENT)
    order = np.argsort(among)
    near = order[np.minimum(np.searchsorted(among[order], wanted), len(order) - 1)]
    found: Array = np.where(among[near] == wanted, near, ABSENT)
    return found


def of_kind(records: Array, kind: Kind) -> Array:
    """The records of a kind, with its field names; a copy."""
    return named(rows_at(records, records["kind"] == kind), kind)


def joined(tables: Sequence[Array]) -> Array:
    """Structured arrays of one dtype one after another, copied as bytes."""
    dtype = tables[0].dtype
    raw = f"V{dtype.itemsize}"
    rows: Array = np.concatenate([np.ascontiguousarray(t).view(raw) for t in tables]).view(dtype)
    return rows


def _empty(dtype: np.dtype[np.void]) -> Array:
    return np.zeros(0, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingState:
    """All that pairing knows after a record."""

    next_seq: int = 0
    """First record not taken in yet."""
    live: Array = field(default_factory=lambda: _empty(BLOCK_DTYPE))
    """Blocks alive, sorted by key; a key occurs once."""
    ended: Array = field(default_factory=lambda: _empty(BLOCK_DTYPE))
    """Blocks freed already whose row waits for their call's end."""
    calls: Array = field(default_factory=lambda: _empty(CALL_DTYPE))
    """Open calls, sorted by call_id."""
    ranges: Array = field(default_factory=lambda: _empty(RANGE_DTYPE))
    """Sequence ranges of calls that ended lately, sorted by key."""
    markers: Array = field(default_factory=lambda: _empty(MARKER_DTYPE))
    """Open markers."""
    threads: Array = field(default_factory=lambda: _empty(THREAD_DTYPE))
    """Threads, sorted by number."""
    modules: Array = field(default_factory=lambda: _empty(MODULE_DTYPE))
    """Modules, sorted by path."""
    weights: Array = field(default_factory=lambda: _empty(WEIGHT_DTYPE))
    """Parameters, in the order of their last records."""
    categories: Array = field(default_factory=lambda: _empty(CATEGORY_DTYPE))
    """Categories of living blocks whose row went out, sorted by allocation_id."""
    tags: Array = field(default_factory=lambda: _empty(TAG_DTYPE))
    """Tags of blocks whose row waits for their call's end, in order of the log."""
    lines: Array = field(default_factory=lambda: _empty(LINE_DTYPE))
    """Lines that make data, sorted."""
    devices: Array = field(default_factory=lambda: _empty(DEVICE_DTYPE))
    steps: Array = field(default_factory=lambda: _empty(STEP_DTYPE))
    """Sums of each device since the last STEP."""
    parts: Array = field(default_factory=lambda: _empty(PART_DTYPE))
    """Parts of the step, by thread; none where the tap compares nothing."""
    compared: Array = field(default_factory=lambda: _empty(COMPARED_DTYPE))
    """Blocks with a place in a part whose row waits, sorted by allocation_id."""
    templates: Array = field(default_factory=lambda: _empty(TEMPLATE_DTYPE))
    """What was observed of parts."""
    step_ends: Array = field(default_factory=lambda: _empty(STEP_END_DTYPE))
    """The last STEP records, where the tap compares."""
    made_in_step: int = 0
    """Blocks that the last one's thread has allocated since."""
    stacks_sent: Array = field(default_factory=lambda: np.zeros(0, np.bool_))
    """By stack id, whether its frames went out. Not stored in a checkpoint: sending twice is harmless."""
    clock_base_ns: int | None = None
    """Add to a record's time to get the host's time; None before the first record."""
    last_ns: int = 0
    """Highest host time so far."""
    step: int = ABSENT
    """The step that goes on; ABSENT before the first call."""
    last_nodes_seq: int = ABSENT
    """See rankmem_ship.pairing.dependence; likewise the next four."""
    last_forward_seq: int = ABSENT
    last_engine_seq: int = ABSENT
    last_outside_seq: int = ABSENT
    last_optimizer_seq: int = ABSENT
    last_phase: int = ABSENT
    """See rankmem_ship.pairing.rounds; likewise the next three."""
    last_break_seq: int = ABSENT
    last_run_node_seq: int = ABSENT
    last_step_seq: int = ABSENT
    template_blocks: int = 0
    """Blocks known by a template as a whole; likewise the next one, by its beginning."""
    prefix_blocks: int = 0
    evidence_blocks: int = 0
    """Blocks of which only what they show is known."""
    steady_misses: int = 0
    """Times that a block came amid a step that no known part has."""
    audit_differences: int = 0
    """Places in templates where something else was observed later."""
    num_preexisting: int = 0
    num_events: int = 0
    num_lost: int = 0
    """Records in gaps, and events that the source could not give (at least one for each LOST)."""
    num_unknown_frees: int = 0
    """Frees of blocks that we never saw: older than the recording, or allocated in a gap."""
    implied_free_bytes: int = 0
    """Bytes of blocks whose free we never saw but whose address was allocated again."""
    is_off: bool = False
    """Events are missing from some record on to the log's end, how many is not known (see Kind.OFF)."""
    infers: bool = True
    """Whether what a block means may still be inferred: not once the hooks that it follows from are off."""
    is_reduced: bool = False
    """Operators are not observed for a while, see rankmem_ship.pairing.detail."""
    is_steady: bool = False
    """Nor are they in steps that are known, see rankmem_ship.pairing.templates."""
    is_mixed: bool = False
    """They are again, since amid the step that goes on."""
    is_doubtful: bool = False
    """Records were missing, and none since has said whether operators are observed."""
    notes: tuple[int, ...] = ()
    """String ids of the NOTE records so far."""
    saw_end: bool = False
    rank_sent_ns: int = -1
    """Host time up to which rank_info was last sent; -1: never."""
