"""The spool format, version 8: the one definition for the C++ writer and the Python reader.

Stage: between trainer and shipper. Standard library only (the trainer imports it to build the tap);
:mod:`rankmem_agent.spool.c_header` gives the C++ side its constants, structs and setters, the reader makes
its numpy dtypes from the same fields, and a test compares the offsets that the compiled library reports.

A spool is a folder, one for each rank process, made by the trainer and deleted by the shipper when
all of it is acknowledged::

    meta.json            facts that never change: who writes here, from when (see rankmem_agent.facts)
    control              CONTROL_BYTES, mmap'd by both sides: counters, state, what is acknowledged; locked by
                         the writer for as long as it lives (see rankmem_agent.spool.life)
    strings              append-only side file: every string, frame and stack, interned once
    segment-00000000 …   the log: SEGMENT_HEADER_BYTES, then RECORDS_PER_SEGMENT records of RECORD_BYTES
    checkpoint           the shipper's pairing state (see rankmem_ship.checkpoint)
    set_aside.json       why it cannot be stored, where that is so (see rankmem_ship.marks)

**Log.** Record number ``seq`` lives in segment ``seq // RECORDS_PER_SEGMENT``. A writer takes a number
with one atomic add on ``control.next_seq``, fills the record, and stores ``mark`` last (release). The
reader stops at a record whose mark is not :func:`mark_of` its number. A segment is reserved
(``posix_fallocate``), mapped and touched by the tap's native thread before any number in it is taken.
Where that failed (full, over budget), the first writer who needs the segment declares it *lost*: its
numbers are counted in ``control.dropped`` and the file never appears; the reader turns them into a gap.
A segment file whose header is not ``ready`` is still being prepared.

**Strings.** Entries of a 16-byte header and a payload padded to 8 bytes, written with one ``pwrite``:
ids count from 1 for each type. The reader stops at an entry that is cut short or whose CRC is wrong.

All integers are little-endian.

Version 8 has COMMUNICATOR records, version 7 steady steps and calls that nobody observed, version 6 PART
records and the outcome AUTO, version 5 ROUNDING records, version 4 DETAIL records, version 3 EVIDENCE
records; all else is as in version 2. All are still read.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rankmem_protos.categories import Category as Category

FORMAT_VERSION: Final = 8

RECORD_BYTES: Final = 64
"""One cache line: a record is written by one thread and never shares a line."""
RECORDS_PER_SEGMENT: Final = 65_536
"""4 MiB a segment: 26 ms of the busiest rank seen (2.5 M events/s), a second of an ordinary one."""
SEGMENT_HEADER_BYTES: Final = 4096
SEGMENT_BYTES: Final = SEGMENT_HEADER_BYTES + RECORDS_PER_SEGMENT * RECORD_BYTES
CONTROL_BYTES: Final = 4096

META_NAME: Final = "meta.json"
META_FORMAT: Final = "rankmem-spool"
CANDIDATE_NAME: Final = "candidate.json"
"""In place of meta.json beside the log of a process that is not known to be a rank."""
SEGMENT_MAGIC: Final = b"RKMSEG01"
CONTROL_MAGIC: Final = b"RKMCTL01"
STRINGS_MAGIC: Final = b"RKMSTR01"
STRINGS_HEADER_BYTES: Final = 16
"""Magic and u32 format version, 4 bytes zero."""

STRING_BYTES_MAX: Final = 1024
"""Longer names are cut: an operator's name is data from outside."""
NOTE_BYTES_MAX: Final = 65_536
"""The JSON of NOTE and DEVICE records may be longer than a name, up to here."""
STACK_FRAMES_MAX: Final = 64
"""Frames kept of a stack, nearest to the operator first."""


class Kind(enum.IntEnum):
    """The kind of a record. :data:`FIELDS` names the fields of each; fields not named are zero."""

    EVENT = 1
    """An allocator event. In a foreign recording any event may have a stack of its own, and the address is
    UNKNOWN for bytes that come and go without one: they count, and make no block."""
    CALL_BEGIN = 2
    """First record of a call, written by its first event (just before it), or by its end. What autograd's
    engine runs outside of an optimizer is in BACKWARD."""
    CALL_END = 3
    """Last record of a call."""
    CALL_FORWARD = 4
    """Which forward call a backward call belongs to: thread and sequence number of the node that it runs in,
    or that ended last before it (sums of gradients, AccumulateGrad). Between its CALL_BEGIN and CALL_END."""
    MARKER_BEGIN = 5
    """A range opens."""
    MARKER_END = 6
    """It closes."""
    STEP = 7
    """A training step ended."""
    CLOCK = 8
    """CLOCK_REALTIME at time_ns. First record of every spool, then about once a second."""
    COUNTERS = 9
    """The allocator's own current figures; UNKNOWN where a foreign recording lacks one."""
    PEAKS = 10
    """The allocator's own peaks (never reset by us)."""
    SAMPLE = 11
    """Memory as seen from outside, UNKNOWN where not known; of PINNED the host allocator's own figures."""
    TAG = 12
    """A storage's meaning."""
    DEVICE = 13
    """Recording of a device starts. A second one for a device: its recording ended here, or begins anew; the
    blocks alive are followed no more."""
    PREEXISTING = 14
    """A block (action ALLOC; then FREE_REQUESTED where it awaits a stream) or segment (SEGMENT_ALLOC) older
    than the recording. Fields as EVENT, and the allocator's size of a block where it is known."""
    NOTE = 15
    """A fact learned late (e.g. parallel dimensions), merged over meta.json's."""
    END = 16
    """Clean end of the process: the interpreter's exit."""
    LOST = 17
    """Events that the source had and could not give, just before this record (the fallback's ring was
    overwritten)."""
    WEIGHT = 18
    """A parameter of the model, or its new place."""
    MODULE = 19
    """A module ran for the first time."""
    OFF = 20
    """From here to the process's end something is not recorded. After one of EVENTS the blocks alive are
    followed no more."""
    INPUT = 21
    """What a call of the model is given, from its first operator on."""
    EVIDENCE = 22
    """What an ALLOC or OOM shows of where it is made, read as it happens: where its operator was found by the
    native stack, and for a test of each. The record right after its EVENT: both numbers are taken at once.
    Keys are equal for equal places of one process, and mean nothing else."""
    DETAIL = 23
    """From here on more or less is recorded around the events, or an order of ``rankmem control`` has come to
    its end. Right behind a STEP, but for one that ends STEADY. Events are recorded at every level."""
    ROUNDING = 24
    """What the device's next event changes in the figures of COUNTERS that move, beyond its size rounded up
    to 512 bytes: the block is larger."""
    PART = 25
    """How the blocks that this thread allocates in one step, its part of the step, compare with its parts of
    steps before: by what each shows (as in EVIDENCE), in their order. Before the EVENT of the block that
    decided it."""
    COMMUNICATOR = 26
    """What a communicator (NCCL's, of a process group) holds on the device, as its library reports it; 0 once
    it is gone."""


class Missing(enum.IntEnum):
    """What is missing after an OFF record."""

    EVENTS = 0
    """All: the agent is off."""
    DEVICE = 1
    """Those of one kind of device."""
    NAMES = 2
    """Names, no bytes: modules, steps, categories."""


class Detail(enum.IntEnum):
    """How much is recorded around the events."""

    EVENTS = 0
    """Neither operators nor stacks nor modules."""
    FULL = 1
    """What the process was started for (``RANKMEM_DETAIL``, ``RANKMEM_STACKS``, ``RANKMEM_MODULES``)."""
    AUTO = 2
    """In an order alone: one of the two, as the tap chooses from step to step."""
    STEADY = 3
    """Calls are not observed, since the step is known: PART records say which earlier step each block is
    like. Where a block is like none, a call with ``is_read`` stands for it."""


RECORDED_DETAILS: Final = (Detail.EVENTS, Detail.FULL, Detail.STEADY)
"""Of a DETAIL record."""


class Course(enum.IntEnum):
    """How a part goes on."""

    FOLLOWS = 0
    """The blocks so far and the next are like the first ones of another part."""
    DIFFERS = 1
    """The next block makes it unlike every part that is kept."""
    ENDS = 2
    """``position`` blocks are all of it."""


class Outcome(enum.IntEnum):
    """What became of an order."""

    APPLIED = 0
    OVER = 1
    """Its last step has ended, or a later order has ended it before."""
    REFUSED = 2
    """Nothing changes: the steps end by calls of the model, which only full detail sees; or the tap cannot
    tell how high a step stands, and is to choose by that."""
    AUTO = 3
    """Of no order: the tap has chosen, since ``order`` or (0) ``RANKMEM_DETAIL`` leaves it to it."""
    MISSED = 4
    """Of no order: a block came that no known part has, so all is observed again, from amid the step on."""


class Action(enum.IntEnum):
    """The allocator's actions, with PyTorch's names (memory_event.action)."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SNAPSHOT = 5
    OOM = 6
    SEGMENT_MAP = 7
    SEGMENT_UNMAP = 8


class DeviceType(enum.IntEnum):
    """c10::DeviceType's numbers; PINNED and NPU are ours."""

    CPU = 0
    CUDA = 1
    HIP = 6
    XPU = 12
    PRIVATEUSE1 = 20
    PINNED = 100
    NPU = 101
    """torch_npu's PRIVATEUSE1, in foreign recordings."""


class Phase(enum.IntEnum):
    """Phase of the training when a call began."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


FROZEN: Final = 1
"""Qualifier of a TAG record: a parameter that wants no gradient."""
BY_USER: Final = 2
"""Qualifier of a TAG record: the training script itself set it, which stands over all else."""
NO_PHASE: Final = 255
"""In place of a Phase: not known."""
IN_CLOSURE: Final = 254
"""From the hooks to the tap in place of a Phase: an optimizer's step that was given a closure. The
closure runs forward and backward in it, the optimizer its own work around them; the tap distinguishes them.
In no record."""


class MarkerKind(enum.IntEnum):
    """Where a range came from."""

    USER_SCOPE = 0
    ANNOTATE = 1
    MODULE = 2
    NVTX = 3
    ALLOCATOR = 4
    """A call that tells the device's allocator what to do."""


class Entry(enum.IntEnum):
    """Types of entries in the strings file."""

    STRING = 1
    """Payload: UTF-8 bytes (invalid bytes are the reader's to replace)."""
    FRAME = 2
    """Payload: u32 file string id, u32 function string id, u32 line."""
    STACK = 3
    """Payload: u32 frame ids, nearest to the operator first."""


class State(enum.IntEnum):
    """control.state."""

    STARTING = 0
    RUNNING = 1
    ENDED = 2
    """The trainer wrote END; nothing follows."""


class ExitKind(enum.IntEnum):
    """control.exit_kind: how the process ended, as far as reported; ``exit_code`` is stored before."""

    UNREPORTED = 0
    EXIT = 1
    """exit(): exit_code is its status. Written by the tap's own handler, after END."""
    AT_ONCE = 2
    """_exit(), as by os._exit: no END."""
    SIGNAL = 3
    """exit_code is the signal that ended it. Written by ``rankmem run`` for the process that it started."""


NO_SEQUENCE: Final = 2**64 - 1
FRAMES_UNKNOWN: Final = 0
"""In place of a key of frames: they cannot be read, or are too many."""
FRAMES_NONE: Final = 1
"""In place of a key of frames: the thread runs no Python."""
UNKNOWN: Final = 2**64 - 1
ORDER_SALT: Final = 0x7261_6E6B_6D65_6D21
"""So that a page of zeros holds no order."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a fixed struct: C type, name and byte offset."""

    ctype: str
    """u8, i8, u32, u64 or char[8]."""
    name: str
    offset: int


RECORD_FIELDS: Final = (
    Field("u64", "time_ns", 0),  # CLOCK_MONOTONIC
    Field("u64", "a", 8),
    Field("u64", "b", 16),
    Field("u64", "c", 24),
    Field("u64", "d", 32),
    Field("u64", "call_id", 40),
    Field("u32", "thread", 48),
    Field("u32", "e", 52),
    Field("u8", "kind", 56),
    Field("u8", "action", 57),
    Field("u8", "device_type", 58),
    Field("u8", "device_index", 59),
    Field("u32", "mark", 60),
)


class Value(enum.Enum):
    """What the number in a named field stands for; ``spool_reader.plausible`` bounds each."""

    ADDRESS = enum.auto()
    BYTES = enum.auto()
    NUMBER = enum.auto()
    """An id or a count."""
    STRING_ID = enum.auto()
    """Of an entry of the strings file: a string's, or a stack's; 0 for none."""
    UPTIME_NS = enum.auto()
    """CLOCK_MONOTONIC."""
    CLOCK_NS = enum.auto()
    """CLOCK_REALTIME."""
    THREAD = enum.auto()
    CODE = enum.auto()
    """A flag, or a member of an enum."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a named field of a kind stands in the record."""

    name: str
    """A field of RECORD_FIELDS."""
    value: Value = Value.CODE


_EVENT: Final = {
    "address": Slot("a", Value.ADDRESS),
    "size_bytes": Slot("b", Value.BYTES),
    "stream": Slot("c"),
    "pool": Slot("d"),  # first << 32 | second
    "device_free_bytes": Slot("d"),  # of an OOM, in the pool's place
    # Of an ALLOC or OOM in no call; where steps may be steady, of a call's first ALLOC as well.
    "stack_id": Slot("e", Value.STRING_ID),
}
_COUNTERS: Final = {
    "allocated_bytes": Slot("a", Value.BYTES),
    "active_bytes": Slot("b", Value.BYTES),
    "reserved_bytes": Slot("c", Value.BYTES),
    "requested_bytes": Slot("d", Value.BYTES),
}
FIELDS: Final[Mapping[Kind, Mapping[str, Slot]]] = {
    Kind.EVENT: _EVENT,
    Kind.CALL_BEGIN: {
        "phase": Slot("action"),  # Phase, or NO_PHASE
        "started_ns": Slot("a", Value.UPTIME_NS),
        "module": Slot("b", Value.STRING_ID),
        "step": Slot("c", Value.NUMBER),
        "node": Slot("d", Value.NUMBER),  # the outermost autograd node that it runs in, from 1; 0: none
        "operator_name": Slot("e", Value.STRING_ID),
    },
    Kind.CALL_END: {
        "started_ns": Slot("a", Value.UPTIME_NS),
        "sequence_first": Slot("b", Value.NUMBER),  # autograd sequence numbers made in it, or NO_SEQUENCE
        "sequence_last": Slot("c", Value.NUMBER),
        "with_grad": Slot("d"),  # 1 if autograd was recording (grad mode)
        "stack_id": Slot("e", Value.STRING_ID),
        "is_read": Slot("action"),  # 1: nobody observed it, it is what its one EVENT shows
    },
    Kind.CALL_FORWARD: {
        "forward_thread": Slot("a", Value.THREAD),
        "forward_sequence": Slot("b", Value.NUMBER),
    },
    Kind.MARKER_BEGIN: {
        "marker_kind": Slot("action"),  # MarkerKind
        "marker_id": Slot("a", Value.NUMBER),
        "name": Slot("e", Value.STRING_ID),
    },
    Kind.MARKER_END: {"marker_id": Slot("a", Value.NUMBER)},
    Kind.STEP: {
        "step": Slot("a", Value.NUMBER),
        "optimizer": Slot("e", Value.STRING_ID),  # its class, "user", or "model call"
    },
    Kind.CLOCK: {"realtime_ns": Slot("a", Value.CLOCK_NS)},
    Kind.COUNTERS: {
        **_COUNTERS,
        # 0: they hold until the next ones. 1: each event that follows changes allocated and active bytes by
        # its size, rounded up to 512 bytes: by the fallback, for which nothing tells them in between.
        "moves": Slot("e"),
    },
    Kind.PEAKS: _COUNTERS,
    Kind.SAMPLE: {
        "app_reserved_bytes": Slot("a", Value.BYTES),  # RSS for the CPU
        "device_used_bytes": Slot("b", Value.BYTES),
        "device_free_bytes": Slot("c", Value.BYTES),
        "device_total_bytes": Slot("d", Value.BYTES),
        "pinned_reserved_bytes": Slot("a", Value.BYTES),  # of PINNED: taken from the system
        "pinned_active_bytes": Slot("b", Value.BYTES),  # of that in use
    },
    Kind.TAG: {
        "category": Slot("action"),  # Category
        "address": Slot("a", Value.ADDRESS),
        "size_bytes": Slot("b", Value.BYTES),
        "since_allocation": Slot("c"),  # 1: it has meant this since it was allocated; 0: from here on
        "qualifier": Slot("d"),  # FROZEN, BY_USER or 0
        "name": Slot("e", Value.STRING_ID),
    },
    # JSON {name, uuid, total_bytes, allocator, settings, source}
    Kind.DEVICE: {"facts": Slot("e", Value.STRING_ID)},
    Kind.PREEXISTING: {
        **_EVENT,
        "block_bytes": Slot("call_id", Value.BYTES),  # of an ALLOC: the allocator's own size; 0: not known
    },
    Kind.NOTE: {"facts": Slot("e", Value.STRING_ID)},  # a JSON object
    Kind.END: {"num_dropped": Slot("a", Value.NUMBER)},
    Kind.LOST: {
        "num_events": Slot("a", Value.NUMBER),  # UNKNOWN where not known
        "why": Slot("e", Value.STRING_ID),  # gap.why
    },
    Kind.WEIGHT: {
        "address": Slot("a", Value.ADDRESS),
        "size_bytes": Slot("b", Value.BYTES),
        "grad_size_bytes": Slot("c", Value.BYTES),  # 0: none yet
        "facts": Slot("e", Value.STRING_ID),  # JSON {name, dtype, shape}
    },
    Kind.MODULE: {
        "path": Slot("a", Value.STRING_ID),
        "is_frozen": Slot(
            "b"
        ),  # 1: no parameter wants a gradient; or it has none, and a frozen one called it
        "class_name": Slot("e", Value.STRING_ID),
    },
    Kind.OFF: {
        "missing": Slot("action"),  # Missing; of DEVICE: the device's events
        "what": Slot("a", Value.STRING_ID),  # gap.what; 0: events
        "detail": Slot("b", Value.STRING_ID),  # gap.detail
        "stops_inference": Slot("d"),  # 1: what blocks mean is inferred no more
        "why": Slot("e", Value.STRING_ID),  # gap.why
    },
    Kind.INPUT: {
        "with_grad": Slot("action"),  # 1 if autograd was recording (grad mode)
        "step": Slot("a", Value.NUMBER),
        "size_bytes": Slot("b", Value.BYTES),  # of all of its tensors
        "module": Slot("c", Value.STRING_ID),  # its path
        "num_left_out": Slot("d", Value.NUMBER),  # tensors that facts do not have
        "facts": Slot("e", Value.STRING_ID),  # JSON {tensors: [[argument, dtype, shape, bytes], ...]}
    },
    Kind.EVIDENCE: {
        "frames_key": Slot("a"),  # of the thread's Python frames; FRAMES_UNKNOWN, FRAMES_NONE
        "modules_key": Slot("b"),  # of the modules whose calls are among them; 0: none
        "node_class": Slot("c"),  # of the autograd node that runs; 0: none
        "node_sequence": Slot("d"),  # its sequence number; NO_SEQUENCE: none, or it sums a gradient
        "nodes_made": Slot("call_id", Value.NUMBER),  # autograd's counter of the thread
        "native_operator": Slot("e", Value.STRING_ID),  # by the native stack, where no call has one
    },
    Kind.DETAIL: {
        "outcome": Slot("action"),  # Outcome
        "order": Slot("a", Value.NUMBER),
        "step": Slot("b", Value.NUMBER),  # the first one recorded so
        "detail": Slot("c"),  # Detail, from here on
    },
    Kind.ROUNDING: {"allocated_bytes": Slot("a"), "active_bytes": Slot("b")},  # with a sign: 2**64 - n is -n
    Kind.PART: {
        "course": Slot("action"),  # Course
        "step": Slot("a", Value.NUMBER),
        "position": Slot("b", Value.NUMBER),  # blocks of the part before this record
        # The step whose part it is like. At its end: like as a whole; its own step, once it is kept as a new
        # one. UNKNOWN: none, and no later part will be like it.
        "like_step": Slot("c", Value.NUMBER),
        "nodes_of": Slot("d", Value.THREAD),  # the other thread whose autograd nodes it has run; 0: none
    },
    Kind.COMMUNICATOR: {
        "held_bytes": Slot("a", Value.BYTES),
        "component": Slot("e", Value.STRING_ID),  # the library and the process group: "NCCL default_pg"
    },
}
"""The fields of each kind by name, beside those that any record may have: :data:`COMMON_FIELDS` and, where it
is an allocator's, ``action``. Two names for one slot are alternatives."""
COMMON_FIELDS: Final = frozenset({"time_ns", "call_id", "thread", "action", "device_type", "device_index"})

SEGMENT_HEADER_FIELDS: Final = (
    Field("char[8]", "magic", 0),
    Field("u32", "version", 8),
    Field("u32", "record_bytes", 12),
    Field("u64", "segment_number", 16),
    Field("u64", "sequence_first", 24),
    Field("u32", "ready", 32),  # 1 once writers may use it; stored last
)

CONTROL_FIELDS: Final = (
    Field("char[8]", "magic", 0),
    Field("u32", "version", 8),
    Field("u32", "pid", 12),
    Field("u32", "state", 16),  # State
    Field("u32", "reserved", 20),
    Field("u32", "exit_kind", 24),  # ExitKind
    Field("u32", "exit_code", 28),
    Field("u32", "exit_follows", 32),  # 1: exit_kind follows soon after END; a reader waits a moment for it
    Field("u64", "next_seq", 64),  # a cache line of its own: every writer adds here
    Field("u64", "dropped", 128),  # records whose segment was lost
    Field("u64", "strings_dropped", 136),  # entries that could not be written
    Field("u64", "stacks", 144),  # different stacks interned
    Field("u64", "attach_ns", 152),  # import and start of the agent
    Field("u64", "lock_device", 160),  # the file whose lock the writer holds while it lives: this one, unless
    Field("u64", "lock_inode", 168),  # the spool is a copy; 0: there is no lock (rankmem_agent.spool.life)
    Field("u64", "heartbeat_ns", 192),  # CLOCK_MONOTONIC of the tap's native thread
    Field("u64", "acked_seq", 256),  # written by the shipper: records below this are durable
    Field("u64", "shipper_pid", 264),  # written by the shipper
    Field("u64", "shipper_heartbeat_ns", 272),  # written by the shipper, CLOCK_MONOTONIC
    Field("u64", "order_number", 320),  # written by the shipper, as all of an order: the latest; 0: none
    Field("u64", "order_detail", 328),  # Detail
    Field("u64", "order_step_first", 336),  # from this step on
    Field("u64", "order_step_last", 344),  # up to this one, then as before; UNKNOWN: for good
    Field("u64", "order_check", 352),  # order_check() of the four; until it fits the order is being written
    Field("u64", "order_taken", 384),  # number of the latest order that the tap has read
    Field("u64", "order_reader", 392),  # 1: the writer is a tap, which reads orders
)

STRING_ENTRY_FIELDS: Final = (
    Field("u8", "type", 0),  # Entry
    Field("u32", "id", 4),
    Field("u32", "length", 8),  # of the payload, without padding
    Field("u32", "crc", 12),  # zlib's CRC-32 of the payload
)
STRING_ENTRY_HEADER_BYTES: Final = 16

STRUCTS: Final = (
    ("RkmRecord", RECORD_FIELDS, RECORD_BYTES),
    ("RkmSegmentHeader", SEGMENT_HEADER_FIELDS, SEGMENT_HEADER_BYTES),
    ("RkmControl", CONTROL_FIELDS, CONTROL_BYTES),
    ("RkmStringEntry", STRING_ENTRY_FIELDS, STRING_ENTRY_HEADER_BYTES),
)
"""Name, fields and size in bytes of each struct of the C++ side."""

C_TYPES: Final = {"u8": "uint8_t", "u32": "uint32_t", "u64": "uint64_t"}
TYPE_BYTES: Final = {"u8": 1, "u32": 4, "u64": 8, "char[8]": 8}


def mark_of(seq: int) -> int:
    """The commit mark of record ``seq``: never zero, and another one for each record of a reused page."""
    return (seq & 0x7FFF_FFFF) | 0x8000_0000


def order_check(number: int, detail: int, step_first: int, step_last: int) -> int:
    """``control.order_check`` of an order."""
    return number ^ (detail << 1) ^ (step_first << 8) & UNKNOWN ^ step_last ^ ORDER_SALT


def segment_name(segment_number: int) -> str:
    """File name of a segment within its spool."""
    return f"segment-{segment_number:08d}"
