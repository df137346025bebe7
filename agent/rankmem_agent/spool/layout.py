"""The spool format, version 2: the one definition for the C++ writer and the Python reader.

Stage: between trainer and shipper. Standard library only (the trainer imports it to build the tap);
:func:`c_header` gives the C++ side its constants and structs, the reader makes its numpy dtypes from
the same fields, and a test compares the offsets that the compiled library reports with these.

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
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

FORMAT_VERSION: Final = 2

RECORD_BYTES: Final = 64
"""One cache line: a record is written by one thread and never shares a line."""
RECORDS_PER_SEGMENT: Final = 65_536
"""4 MiB a segment: 26 ms of the busiest rank seen (2.5 M events/s), a second of an ordinary one."""
SEGMENT_HEADER_BYTES: Final = 4096
SEGMENT_BYTES: Final = SEGMENT_HEADER_BYTES + RECORDS_PER_SEGMENT * RECORD_BYTES
CONTROL_BYTES: Final = 4096

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
    """What a record says. Fields not named are zero. ``device`` is device_type and device_index."""

    EVENT = 1
    """An allocator event. action, device; a=address, b=size, c=stream, d=pool (first<<32 | second);
    for oom d=device free bytes; call_id, thread; e=stack id (0: none) of an alloc or oom in no call.
    In a foreign recording e=stack id of any event, and a=UNKNOWN for bytes that come and go without an
    address: they count, and make no block."""
    CALL_BEGIN = 2
    """First record of a call. call_id, thread; a=started_ns, b=module string id, c=step, action=Phase (what
    autograd's engine runs outside of an optimizer is BACKWARD; NO_PHASE: not said), d=number of the
    outermost autograd node that it runs in (from 1; 0: none), e=operator string id. Written by the call's
    first event (just before it), or by its end."""
    CALL_END = 3
    """Last record of a call. call_id, thread; a=started_ns, b=first and c=last autograd sequence number
    made in it (both NO_SEQUENCE if none), d=1 if autograd was recording (grad mode), e=stack id (0: none)."""
    CALL_FORWARD = 4
    """Which forward call a backward call belongs to. call_id, thread; a=forward thread, b=sequence number:
    those of the node that it runs in, or that ended last before it (sums of gradients, AccumulateGrad).
    Between its CALL_BEGIN and CALL_END."""
    MARKER_BEGIN = 5
    """A range opens. a=marker id, e=name string id, action=MarkerKind, thread."""
    MARKER_END = 6
    """It closes. a=marker id, thread."""
    STEP = 7
    """A training step ended. a=its number, e=string id of the optimizer's class (or "user"), thread."""
    CLOCK = 8
    """a=CLOCK_REALTIME in ns at time_ns. First record of every spool, then about once a second."""
    COUNTERS = 9
    """The allocator's own current figures. device; a=allocated, b=active, c=reserved, d=requested;
    call_id. UNKNOWN where a foreign recording does not say."""
    PEAKS = 10
    """The allocator's own peaks (never reset by us). Fields as COUNTERS."""
    SAMPLE = 11
    """Seen from outside. device; a=app reserved (RSS for cpu), b=device used, c=device free, d=device total;
    UNKNOWN where not known. Of PINNED what the host allocator says of itself: a=taken from the system, b=of
    that in use."""
    TAG = 12
    """A storage's meaning. device; a=address of the storage, b=its size in bytes, action=Category, e=name
    string id; c=1: it has meant this since it was allocated, 0: from here on; d=1: a parameter that wants no
    gradient; d=BY_USER: the training script itself has said so, which stands over all else."""
    DEVICE = 13
    """Recording of a device starts. device; e=string id of JSON {name, uuid, total_bytes, allocator,
    settings, source}. A second one for a device: its recording ended here, or begins anew; the blocks alive
    are followed no more."""
    PREEXISTING = 14
    """A block older than the recording. Fields as EVENT; action=alloc for blocks, segment_alloc for
    segments."""
    NOTE = 15
    """A fact learned late. e=string id of a JSON object merged over meta.json's (e.g. parallel
    dimensions)."""
    END = 16
    """Clean end of the process: the interpreter's exit. a=records dropped so far."""
    LOST = 17
    """Events that the source had and could not give, just before this record (the fallback's ring was
    overwritten). device; a=how many, UNKNOWN where not known; e=string id of why (a ``gap.why``)."""
    WEIGHT = 18
    """A parameter of the model, or its new place. device; a=address of its storage, b=size in bytes, c=size
    of its gradient in bytes (0: none yet), e=string id of JSON {name, dtype, shape}."""
    MODULE = 19
    """A module ran for the first time. a=string id of its path, e=string id of its class; b=1: it has
    parameters, none of which wants a gradient, or it has none and was called by such a module."""

    OFF = 20
    """From here to the process's end something is not recorded. action=Missing; device where it is one kind's
    events; a=string id of what is missing (``gap.what``; 0: events), b=string id of what happened, in words
    (``gap.detail``), d=1: what blocks mean is inferred no more; e=string id of why (``gap.why``). After one
    of EVENTS the blocks alive are followed no more."""


class Missing(enum.IntEnum):
    """What an OFF record says is missing."""

    EVENTS = 0
    """All: the agent is off."""
    DEVICE = 1
    """Those of one kind of device."""
    NAMES = 2
    """Names, no bytes: modules, steps, categories."""


class Category(enum.IntEnum):
    """What bytes mean, with torch.profiler's names and numbers; UNKNOWN and KV_CACHE are ours."""

    UNKNOWN = 0
    INPUT = 1
    TEMPORARY = 2
    ACTIVATION = 3
    GRADIENT = 4
    AUTOGRAD_DETAIL = 5
    PARAMETER = 6
    OPTIMIZER_STATE = 7
    KV_CACHE = 8
    """Keys and values that a model keeps of earlier tokens; ours too."""


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


BY_USER: Final = 2
"""Field d of a TAG record."""
NO_PHASE: Final = 255
"""In place of a Phase: the recording does not say."""
IN_CLOSURE: Final = 254
"""What the hooks tell the tap in place of a Phase: an optimizer's step that was given a closure. The closure
runs forward and backward in it, the optimizer its own work around them; the tap tells them apart. In no
record."""


class MarkerKind(enum.IntEnum):
    """Where a range came from."""

    USER_SCOPE = 0
    ANNOTATE = 1
    MODULE = 2
    NVTX = 3


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
    """control.exit_kind: how the process ended, as far as somebody said; ``exit_code`` is stored before."""

    NOT_SAID = 0
    EXIT = 1
    """exit(): exit_code is its status. Said by the tap's own handler, after END."""
    AT_ONCE = 2
    """_exit(), as by os._exit: no END."""
    SIGNAL = 3
    """exit_code is the signal that ended it. Said by ``rankmem run`` of the process that it started."""


NO_SEQUENCE: Final = 2**64 - 1
UNKNOWN: Final = 2**64 - 1


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
    Field("u32", "exit_follows", 32),  # 1: exit_kind is said soon after END; a reader waits a moment for it
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


def segment_name(segment_number: int) -> str:
    """File name of a segment within its spool."""
    return f"segment-{segment_number:08d}"


def c_header() -> str:
    """The text of ``spool_layout.h``: constants, enums and structs of this module, with static asserts."""
    lines = [
        "// Made by rankmem_agent.spool.layout; do not edit.",
        "#pragma once",
        "#include <cstddef>",
        "#include <cstdint>",
    ]
    for name, value in sorted(_constants().items()):
        lines.append(f"constexpr uint64_t RKM_{name} = {value}ull;")
    for enum_class in (Kind, Category, Action, DeviceType, Phase, MarkerKind, Entry, State, ExitKind):
        prefix = f"constexpr uint8_t RKM_{enum_class.__name__.upper()}"
        lines += [f"{prefix}_{member.name} = {int(member)};" for member in enum_class]
    magics = ("SEGMENT_MAGIC", "CONTROL_MAGIC", "STRINGS_MAGIC")
    lines += [f'#define RKM_{magic} "{globals()[magic].decode()}"' for magic in magics]
    for name, fields, size in STRUCTS:
        lines += _c_struct(name, fields, size)
    lines += [
        "struct RkmOffset { const char* name; uint64_t offset; };",
        "constexpr RkmOffset RKM_OFFSETS[] = {",
    ]
    for name, fields, _ in STRUCTS:
        lines += [f'  {{"{name}.{f.name}", offsetof({name}, {f.name})}},' for f in fields]
    return "\n".join([*lines, "};"]) + "\n"


def _constants() -> dict[str, int]:
    names = (
        "FORMAT_VERSION", "RECORD_BYTES", "RECORDS_PER_SEGMENT", "SEGMENT_HEADER_BYTES", "SEGMENT_BYTES",
        "CONTROL_BYTES", "STRINGS_HEADER_BYTES", "STRING_ENTRY_HEADER_BYTES", "STRING_BYTES_MAX",
        "NOTE_BYTES_MAX", "STACK_FRAMES_MAX", "NO_SEQUENCE", "UNKNOWN", "IN_CLOSURE",
    )  # fmt: skip
    return {name: globals()[name] for name in names}


def _c_struct(name: str, fields: tuple[Field, ...], size: int) -> list[str]:
    """A packed C struct with explicit padding, and asserts that the compiler agrees on every offset."""
    body: list[str] = []
    end = 0
    for index, field in enumerate(fields):
        if field.offset > end:
            body.append(f"  uint8_t pad{index}[{field.offset - end}];")
        if field.ctype == "char[8]":
            body.append(f"  char {field.name}[8];")
        else:
            body.append(f"  {C_TYPES[field.ctype]} {field.name};")
        end = field.offset + TYPE_BYTES[field.ctype]
    if size > end:
        body.append(f"  uint8_t pad_end[{size - end}];")
    asserts = [f"static_assert(offsetof({name}, {f.name}) == {f.offset});" for f in fields]
    return [f"struct {name} {{", *body, "};", f"static_assert(sizeof({name}) == {size});", *asserts]
