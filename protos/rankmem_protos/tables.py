"""Every table of the database, declared once: columns, Arrow types, units, meaning.

Stage: the contract between shipper and aggregator, and the promise to whoever writes SQL.
DDL, ``COMMENT``s and ``docs/schema.md`` are made from here; the wire carries record batches of
exactly these schemas. Additive only: a column is never renamed, retyped or removed.
Runs in shipper and aggregator, never in the trainer (it imports pyarrow).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

SCHEMA_VERSION: Final = 17
"""Raised when a table or column is added; written to the database's ``rankmem_meta``."""

NAME: Final = pa.dictionary(pa.int32(), pa.string())
"""A string that repeats (operator, device, action): dictionary-encoded on the wire, VARCHAR in DuckDB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its name, Arrow type and one sentence for the ``COMMENT``."""

    name: str
    type: pa.DataType
    doc: str
    unit: str = ""
    """``bytes``, ``ns``, ... or empty."""
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: what a row is, its columns, and its key where rows replace one another."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """Empty: rows are appended. Otherwise a row replaces the one with the same key (upsert)."""

    def arrow_schema(self) -> pa.Schema:
        """The schema of this table's record batches on the wire, columns in declared order."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])

    def column_names(self) -> tuple[str, ...]:
        """The declared column names, in order."""
        return tuple(c.name for c in self.columns)


def _name(name: str, doc: str, *, nullable: bool = True) -> Column:
    return Column(name=name, type=NAME, doc=doc, nullable=nullable)


def _text(name: str, doc: str, *, nullable: bool = True) -> Column:
    return Column(name=name, type=pa.string(), doc=doc, nullable=nullable)


def _int(name: str, doc: str, unit: str = "", *, nullable: bool = True) -> Column:
    return Column(name=name, type=pa.int64(), doc=doc, unit=unit, nullable=nullable)


def _small(name: str, doc: str, *, nullable: bool = True) -> Column:
    return Column(name=name, type=pa.int32(), doc=doc, nullable=nullable)


def _bytes(name: str, doc: str, *, nullable: bool = True) -> Column:
    return _int(name, doc, "bytes", nullable=nullable)


def _time(name: str, doc: str, *, nullable: bool = True) -> Column:
    return _int(name, doc, "ns since 1970-01-01 UTC, the host's clock", nullable=nullable)


def _flag(name: str, doc: str, *, nullable: bool = True) -> Column:
    return Column(name=name, type=pa.bool_(), doc=doc, nullable=nullable)


_SESSION = _name("session_id", "The job; 12 characters, ordered by start time.", nullable=False)
_ATTEMPT = _small("attempt", "Which start of the workers: torchrun's restart count, from 0.", nullable=False)
_RANK = _small("rank", "Global rank of the worker process.", nullable=False)
_DEVICE = _name("device", "Device type and index, such as cuda:0; cpu has no index.", nullable=False)
_OF_RANK = (_SESSION, _ATTEMPT, _RANK)
_OF_DEVICE = (*_OF_RANK, _DEVICE)

SESSION: Final = Table(
    name="session",
    doc="A training job, from launch to end, over all its restarts.",
    key=("session_id",),
    columns=(
        _text("session_id", "The job; 12 characters, ordered by start time.", nullable=False),
        _text("name", "The name the user gave, or the script's."),
        _text("source", "live, or the kind of recording the session was imported from.", nullable=False),
        _small("world_size", "Number of ranks the launcher announced."),
        _text("command", "The script of the job; with its arguments only where the user asked for them."),
        _time("started_at_ns", "When the first rank attached."),
        _time("ended_at_ns", "When the last rank ended; NULL while any runs."),
        _text("rankmem_version", "Version of rankmem in the trainer."),
        _text("torch_version", "Version of torch in the trainer, with its build."),
        _text("python_version", "Version of Python in the trainer."),
    ),
)

HOST_INFO: Final = Table(
    name="host_info",
    doc="A host that ran ranks (names ignore case in DuckDB, so this is HOST_INFO).",
    key=("host_uid",),
    columns=(
        _text("host_uid", "Stable id of the machine (from its machine id and boot).", nullable=False),
        _text("host_name", "What gethostname() gives.", nullable=False),
        _text("address", "The host's address as seen by the default route, or its name."),
        _text("os", "Kernel and release."),
        _small("cpu_count", "Processors the job may use."),
        _bytes("memory_bytes", "Physical memory."),
        _text("gpu_driver", "Version of the GPU driver; NULL without one."),
    ),
)

STEADY_COUNTS: Final = (
    "template_blocks",
    "prefix_blocks",
    "evidence_blocks",
    "steady_misses",
    "audit_differences",
)
"""Columns of rank_info on steps that were not observed since they were known."""
RANK_INFO: Final = Table(
    name="rank_info",
    doc="A rank of an attempt: one worker process.",
    key=("session_id", "attempt", "rank"),
    columns=(
        *_OF_RANK,
        _small("local_rank", "Rank within its host."),
        _text("host_uid", "The host it ran on; see host_info.", nullable=False),
        _int("pid", "Process id on that host."),
        _time("process_started_ns", "Start of the process; with pid it names the process for good."),
        _text("spool_id", "The spool its events came through.", nullable=False),
        _text("detail", "RANKMEM_DETAIL: full, operators, events or auto; NULL if unknown."),
        _text(
            "not_recorded",
            "What was switched off: a list of operators, stacks, modules; empty: nothing; NULL: unknown.",
        ),
        _small("world_size", "Number of ranks that the launcher announced for its attempt."),
        _small("dp", "Data-parallel coordinate, where known."),
        _small("tp", "Tensor-parallel coordinate, where known."),
        _small("pp", "Pipeline-parallel coordinate, where known."),
        _small("cp", "Context-parallel coordinate, where known."),
        _small("ep", "Expert-parallel coordinate, where known."),
        _int(
            "clock_offset_ns", "Add to this host's times to get the aggregator's clock; best estimate.", "ns"
        ),
        _int(
            "clock_error_ns", "Half the round trip of that estimate: the offset is within this bound.", "ns"
        ),
        _time("started_at_ns", "When the agent attached."),
        _time("ended_at_ns", "When the process ended; NULL while it runs."),
        _text(
            "end_reason",
            "exit (ran to its end), exception (one that nobody caught), exit N (N by sys.exit or the like), "
            "_exit N (at once, by os._exit), killed (by a signal, or vanished without a word), or NULL while "
            "it runs.",
        ),
        _int("events", "Allocator events stored so far."),
        _int(
            "events_lost",
            "At most so many events are missing: the records that are, of which an event is one; each hole "
            "is a row of gap. NULL: some, and nobody knows how many.",
        ),
        _int(
            "unexplained_bytes",
            "Replayed requested bytes minus the allocator's own figure, at the end.",
            "bytes",
        ),
        _flag("complete", "True if no event is missing and the replay equals the allocator's own counter."),
        _small(
            "exit_code",
            "The process's exit code; below zero the signal that ended it (-9: SIGKILL). NULL: not known.",
        ),
        _text("exception", "Type of the exception that ended it; NULL without one."),
        _int(
            "template_blocks",
            "Blocks of which the step ran as a whole like an earlier, observed one (RANKMEM_STEADY), see "
            "allocation_record.attribution. NULL, here and in the next four: every step was observed.",
        ),
        _int("prefix_blocks", "Blocks of which only the beginning of the step is known to have run so."),
        _int(
            "evidence_blocks",
            "Blocks of which only what was read at the allocation itself is known; their forward call or "
            "category may be missing.",
        ),
        _int(
            "steady_misses",
            "Times that a block came amid an unobserved step that no known step has there; calls were "
            "observed again from then on.",
        ),
        _int(
            "audit_differences",
            "Places in steps where an observed step had another operator, module, phase or stack than the "
            "one taken as template; 0: none was found.",
        ),
    ),
)

DEVICE_INFO: Final = Table(
    name="device_info",
    doc="A device that a rank used.",
    key=("session_id", "attempt", "rank", "device"),
    columns=(
        *_OF_DEVICE,
        _text("name", "The device's product name."),
        _text("uuid", "The device's UUID or PCI id: an index means nothing across processes."),
        _bytes("total_bytes", "Memory of the device."),
        _text("allocator", "Allocator backend that served it: native, cudaMallocAsync, cpu, ..."),
        _text("settings", "The allocator's settings as text (PYTORCH_CUDA_ALLOC_CONF)."),
        _text("source", "Where its events came from: tap, snapshot (the fallback), or a recording's kind."),
    ),
)

MEMORY_EVENT: Final = Table(
    name="memory_event",
    doc="One action of an allocator. Totals are those after the event.",
    columns=(
        *_OF_DEVICE,
        _int(
            "seq",
            "Position in the rank's log; orders the events of a rank even where times tie.",
            nullable=False,
        ),
        _time("time_ns", "When; does not decrease in seq.", nullable=False),
        _name(
            "action",
            "alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, "
            "oom or snapshot; unknown where a recording has totals alone.",
            nullable=False,
        ),
        _int("address", "Address of the block or segment on its device."),
        _bytes(
            "size_bytes",
            "Requested size of the block, or size of the segment; for oom the (rounded) request.",
        ),
        _int("stream", "The stream the block belongs to; 0 is the default stream, NULL on cpu."),
        _name("pool", "Private pool as first.second id; NULL for the default pool."),
        _name(
            "component",
            "Who allocated: pytorch, cuda_graph, mem_pool, pinned_host or app; of Ascend also ge, mindspore "
            "and workspace; of TensorFlow's steps tensorflow.",
            nullable=False,
        ),
        _bytes("requested_bytes", "Requested bytes of all blocks alive on the device after this event."),
        _bytes(
            "allocated_bytes", "The allocator's own allocated bytes, where known; NULL on cpu (= requested)."
        ),
        _bytes(
            "active_bytes",
            "Allocated plus freed but awaiting a stream, where known; NULL on cpu (= requested).",
        ),
        _bytes("reserved_bytes", "Bytes the allocator holds from the device; NULL on cpu (= requested)."),
        _int("allocation_id", "The block's life this event belongs to; see allocation."),
        _int("call_id", "The operator call that caused it; see operator_call. NULL outside of calls."),
        _small("thread", "Thread number, as torch's profiler numbers them."),
        _int(
            "stack_id",
            "Stack of the event itself, where an imported recording has one; see stack_frame. An alloc's is "
            "its block's, in allocation.",
        ),
    ),
)

ALLOCATION_RECORD: Final = Table(
    name="allocation_record",
    doc="A block's life as known when its rows were sent; the view allocation adds allocation_end.",
    columns=(
        *_OF_DEVICE,
        _int(
            "allocation_id",
            "seq of the alloc event; negative for blocks older than the recording. Of an older block of a "
            "component that an imported recording shows only later, a position before its first event.",
            nullable=False,
        ),
        _int("address", "Address on its device."),
        _bytes("size_bytes", "Requested size."),
        _bytes("requested_bytes", "Requested size where it differs from size_bytes (imported recordings)."),
        _int("stream", "Stream it belongs to; NULL on cpu."),
        _name("pool", "Private pool as first.second id; NULL for the default pool."),
        _name("component", "Who allocated; see memory_event.", nullable=False),
        _name(
            "category",
            "What the bytes mean: parameter, optimizer_state, input, temporary, activation, "
            "gradient, autograd_detail, kv_cache or unknown.",
        ),
        _name("operator", "The operator call that allocated it, such as aten::mm; NULL outside of calls."),
        _name("module", "Path of the innermost module around it."),
        _name("phase", "forward, backward, optimizer or other."),
        _int("step", "Training step it was made in, from 0."),
        _int("call_id", "The operator call that allocated it."),
        _int("stack_id", "Python stack of that call; see stack_frame."),
        _time(
            "allocated_ns",
            "When it was allocated. NULL for blocks older than the recording; where their component shows up "
            "only later, when it does: they are in the totals from there on.",
        ),
        _time("free_requested_ns", "When its tensor was freed, where the allocator reports it (CUDA)."),
        _int("free_requested_seq", "seq of that event."),
        _time("freed_ns", "When the block was given back; NULL if not known to be."),
        _int("freed_seq", "seq of that event."),
        _flag("preexisting", "True for a block older than the recording.", nullable=False),
        _name("annotation", "Innermost user annotation around its call; see marker."),
        _int("forward_call_id", "For a block of backward: the forward call it belongs to."),
        _int("forward_stack_id", "Python stack of that forward call; see stack_frame."),
        _flag("recomputed", "True if made while a checkpoint computed forward again, within backward."),
        _bytes(
            "block_bytes",
            "The allocator's own size of a block older than the recording: what was requested, rounded up, "
            "and a rest too small to be split off. NULL for any other block, and where it is not recorded.",
        ),
        _name(
            "attribution",
            "By what its operator, module, phase and stacks are known. observed: the call that made it was "
            "observed, or it was made outside of calls while calls were. template: its step ran as a whole "
            "like an earlier, observed one, by what each allocation shows; operator, module, phase, stacks "
            "and category are those of the block in the same place there. template_prefix: the same, but the "
            "step differed later, or its end is not recorded. evidence: operator and stack were read at the "
            "allocation itself; a phase, a forward call (in backward the module too) and a category may be "
            "missing. none: nothing was observed (detail summary), or the record of its call is lost. NULL: "
            "as the source says, in imported recordings, older databases and for blocks older than the "
            "recording.",
        ),
        _int(
            "like_id",
            "For template and template_prefix: allocation_id of the block of an earlier step it is like.",
        ),
    ),
)

ALLOCATION_END: Final = Table(
    name="allocation_end",
    doc="What became known of an allocation after its row was sent: its free, in a later batch.",
    columns=(
        *_OF_DEVICE,
        _int("allocation_id", "The block's life.", nullable=False),
        _time("free_requested_ns", "When its tensor was freed, where the allocator reports it (CUDA)."),
        _int("free_requested_seq", "seq of that event."),
        _time("freed_ns", "When the block was given back."),
        _int("freed_seq", "seq of that event."),
    ),
)

ALLOCATION_USE: Final = Table(
    name="allocation_use",
    doc="When operators used a block, where the recording has its accesses (msMemScope's, imported alone): "
    "one row for a block that was used, told after its free or at the end.",
    columns=(
        *_OF_DEVICE,
        _int("allocation_id", "The block's life.", nullable=False),
        _int("uses", "Its accesses, reads and writes.", nullable=False),
        _time("first_used_ns", "The first one.", nullable=False),
        _time("last_used_ns", "The last one.", nullable=False),
        _time("idle_from_ns", "Begin of the longest time between two of them, the first such; NULL for one."),
        _time("idle_until_ns", "Its end."),
    ),
)

OPERATOR_CALL: Final = Table(
    name="operator_call",
    doc="An outermost operator call that touched memory or moved autograd's sequence number.",
    columns=(
        *_OF_RANK,
        _int("call_id", "Unique in its rank and attempt.", nullable=False),
        _name("operator", "The dispatcher's operator, such as aten::mm.", nullable=False),
        _name("module", "Path of the innermost module around it."),
        _name("phase", "forward, backward, optimizer or other."),
        _int("step", "Training step, from 0."),
        _small("thread", "Thread number, as torch's profiler numbers them."),
        _int("sequence_first", "First autograd sequence number made in the call; NULL if none."),
        _int("sequence_last", "Last autograd sequence number made in the call; NULL if none."),
        _small("forward_thread", "Thread of the forward call this backward call belongs to."),
        _int("forward_sequence", "Autograd sequence number of that forward call."),
        _int("forward_call_id", "The forward call, found by (forward_thread, forward_sequence)."),
        _int("stack_id", "Python stack; see stack_frame."),
        _time("started_ns", "Start of the call."),
        _time("ended_ns", "End of the call; NULL if it never ended."),
        _bytes("allocated_bytes", "Requested bytes allocated in the call, all devices."),
        _bytes("freed_bytes", "Requested bytes freed in the call, all devices."),
        _int("allocations", "Blocks allocated in the call."),
        _name("annotation", "Innermost user annotation around it; see marker."),
        _int("forward_stack_id", "For a backward call: Python stack of its forward call."),
        _flag("recomputed", "True if a checkpoint computed forward again, within backward."),
    ),
)

STACK_FRAME: Final = Table(
    name="stack_frame",
    doc="A frame of a Python stack; each stack is stored once for the whole cluster.",
    columns=(
        _int("stack_id", "The stack.", nullable=False),
        _small("ordering", "0 is the frame nearest to the operator.", nullable=False),
        _text(
            "file_path",
            "Path of the source file, relative to the project's root where inside it. "
            "With RANKMEM_STACKS=names empty inside the project, <outside> elsewhere.",
            nullable=False,
        ),
        _small("line_number", "Line, from 1; 0 with RANKMEM_STACKS=names.", nullable=False),
        _text("function", "Qualified name of the function.", nullable=False),
    ),
)

MARKER: Final = Table(
    name="marker",
    doc="A user's annotation or a named range of the program. Where records are missing (gap), those that "
    "are open may have ended: nothing after the gap counts as within them.",
    columns=(
        *_OF_RANK,
        _int("marker_id", "Unique in its rank and attempt.", nullable=False),
        _name("name", "The annotation's text.", nullable=False),
        _name(
            "kind",
            "user_scope (record_function), annotate (rankmem's own), module, nvtx, or allocator (a call of "
            "torch.cuda.empty_cache or set_per_process_memory_fraction).",
            nullable=False,
        ),
        _small("depth", "0 is the outermost range of its thread."),
        _small("thread", "Thread number."),
        _time("started_ns", "Start."),
        _time("ended_ns", "End; NULL if it never ended, or its end is missing."),
    ),
)

STEP: Final = Table(
    name="step",
    doc="One training step, as seen through the optimizer's hooks or marked by the user; in a process "
    "without an optimizer, one call of the model.",
    columns=(
        *_OF_RANK,
        _int("step", "Number, from 0.", nullable=False),
        _time("ended_ns", "End of the optimizer's step; it starts where the one before ended."),
        _int("seq", "Position in the rank's log."),
        _name(
            "optimizer",
            "Class of the optimizer; user where the user marked it; model call where there is no optimizer.",
        ),
    ),
)

STEP_INPUT: Final = Table(
    name="step_input",
    doc="A tensor that a call of the model is given: the batch. The model is the largest module that is "
    "called; of two of the same size, the one that is trained. The first 8 calls of a step with autograd "
    "and the first 8 without, 16 tensors of each; not of calls that are traced.",
    columns=(
        *_OF_RANK,
        _int("step", "Number of the step, from 0.", nullable=False),
        _int("seq", "Position in the rank's log; the same for all tensors of a call.", nullable=False),
        _time("time_ns", "When the call's first operator began.", nullable=False),
        _name("module", "Path of the module that was called: the model."),
        _flag("with_grad", "True if autograd was recording; validation runs without.", nullable=False),
        _name("argument", "Place or name of the argument, such as 0, input_ids or batch.mask."),
        _name("dtype", "Element type, such as int64."),
        _name("shape", "Shape, such as [8, 1024]."),
        _bytes("size_bytes", "Elements times the size of one; a view may share them."),
        _bytes("call_bytes", "Of all tensors of the call.", nullable=False),
        _small(
            "num_left_out",
            "Tensors of the call without a row; a row without an argument stands for a call without others.",
            nullable=False,
        ),
    ),
)

STEP_BUCKET: Final = Table(
    name="step_bucket",
    doc="A device of a rank in a training step, or in a part of one: a step that several optimizers end has "
    "a row for each end.",
    columns=(
        *_OF_DEVICE,
        _int("step", "Number, from 0.", nullable=False),
        _int("seq_last", "Last event in it.", nullable=False),
        _bytes("peak_bytes", "Highest requested bytes after an event in it.", nullable=False),
        _int("peak_seq", "The first such event.", nullable=False),
        _time("peak_ns", "Its time.", nullable=False),
        _bytes("last_bytes", "Requested bytes after its last event.", nullable=False),
        _bytes("allocated_bytes", "Requested bytes of the blocks allocated in it.", nullable=False),
        _int("num_allocations", "How many.", nullable=False),
    ),
)

PROCESS_SAMPLE: Final = Table(
    name="process_sample",
    doc="What the process and its device hold, seen from outside the allocator, about once a second.",
    columns=(
        *_OF_DEVICE,
        _time("time_ns", "When.", nullable=False),
        _int("seq", "Position in the rank's log.", nullable=False),
        _bytes("app_reserved_bytes", "Held by the whole process: RSS for cpu, the driver's figure for cuda."),
        _bytes("device_used_bytes", "Used on the device by all processes."),
        _bytes("device_free_bytes", "Free on the device."),
        _bytes("device_total_bytes", "The device's memory."),
    ),
)

OOM: Final = Table(
    name="oom",
    doc="An allocation that failed.",
    columns=(
        *_OF_DEVICE,
        _int("seq", "Position in the rank's log.", nullable=False),
        _time("time_ns", "When.", nullable=False),
        _bytes("size_bytes", "What was asked for; rounded up by the allocator on CUDA."),
        _bytes("device_free_bytes", "Free on the device then, where known."),
        _bytes("requested_bytes", "Requested bytes alive then."),
        _bytes("reserved_bytes", "Bytes the allocator held then."),
        _int("stream", "Stream of the request."),
        _int("call_id", "The operator call."),
        _name("operator", "The operator."),
        _int("stack_id", "Python stack of that call; see stack_frame."),
    ),
)

GAP: Final = Table(
    name="gap",
    doc="A hole in a rank's log: what is missing and why. A rank without one has every event.",
    columns=(
        *_OF_RANK,
        _int("sequence_first", "First missing position.", nullable=False),
        _int("sequence_last", "Last missing position.", nullable=False),
        _int(
            "records",
            "Records of the log that are missing, so at most as many events: a call, a tag, a sample is a "
            "record, too; 0 where to_end says the rest.",
            nullable=False,
        ),
        _text(
            "why",
            "spool_full, torn, reserve_failed, corrupt, ring_overwritten, other_database, no_memory; "
            "set_aside (what could not be stored is kept on its host); agent_off (the agent switched itself "
            "off), not_started (it never began), never_read (its process ended before its last events were "
            "read from PyTorch's history), device_off (a kind of device is not recorded), hooks_off (names "
            "are missing, no bytes).",
            nullable=False,
        ),
        _time("noticed_ns", "When it was noticed."),
        _text("what", "What is missing where it is not events: steps, modules, ...; NULL: events."),
        _text("detail", "What happened, in words; NULL where why says all."),
        _flag("to_end", "True if all of it is missing from noticed_ns to the process's end, however much."),
    ),
)

SELF_COST: Final = Table(
    name="self_cost",
    doc="What rankmem itself cost a rank, written now and then and at its end; figures are totals so far.",
    columns=(
        *_OF_RANK,
        _time("time_ns", "When.", nullable=False),
        _int("records", "Records written to the spool."),
        _int("stacks", "Different Python stacks seen."),
        _int("attach_ns", "Import and start of the agent in the trainer.", "ns"),
        _bytes("spool_bytes", "Bytes on the spool now."),
        _int("shipper_cpu_ns", "CPU time of the host's shipper, all its ranks.", "ns"),
        _bytes("shipper_rss_bytes", "Memory of the host's shipper."),
        _bytes("sent_bytes", "Bytes sent for this rank."),
        _int("strings_dropped", "Names, frames and stacks that found no room: unknown where they belong."),
    ),
)

BUCKET_RECORDS: Final = 64
"""A bucket never reaches over a multiple of this in seq; views/group_peak.sql is quick through it.

Half as many rows cost 0.2 bytes an event less on disk and leave the job's peak twice the events to sweep."""

SUMMARY_BUCKET_RECORDS: Final = 4096
"""The same where rows of events may stay on their host: what goes up then is a hundredth."""

MEMORY_BUCKET: Final = Table(
    name="memory_bucket",
    doc="A device of a rank in (part of) a second and of 64 records of its log, those of one seq // 64 (4096 "
    "where availability has rows): its highest totals and its last; feeds peaks and curves.",
    columns=(
        *_OF_DEVICE,
        _time("bucket_ns", "Start of the second.", nullable=False),
        _int("seq_first", "First event in it.", nullable=False),
        _int("seq_last", "Last event in it.", nullable=False),
        _time("first_ns", "Time of the first event.", nullable=False),
        _time("last_ns", "Time of the last event.", nullable=False),
        _int("events", "Events in it.", nullable=False),
        _bytes("requested_peak_bytes", "Highest requested bytes after an event in it.", nullable=False),
        _time("requested_peak_ns", "Its first instant.", nullable=False),
        _int("requested_peak_seq", "Its event.", nullable=False),
        _bytes("requested_last_bytes", "Requested bytes after the last event.", nullable=False),
        _bytes("allocated_peak_bytes", "Highest allocated bytes known, the allocator's own figure."),
        _bytes("allocated_last_bytes", "The last known."),
        _bytes("active_peak_bytes", "Highest active bytes known."),
        _bytes("active_last_bytes", "The last known."),
        _bytes("reserved_peak_bytes", "Highest reserved bytes after an event."),
        _bytes("reserved_last_bytes", "The last."),
    ),
)

CLOCK_OFFSET: Final = Table(
    name="clock_offset",
    doc="An estimate of a host's clock against the aggregator's; applied by the views, never to stored rows.",
    columns=(
        _text("host_uid", "The host.", nullable=False),
        _time("time_ns", "When it was measured.", nullable=False),
        _int("offset_ns", "Add to the host's times to get the aggregator's.", "ns", nullable=False),
        _int("error_ns", "Half the smallest round trip: the bound of the error.", "ns", nullable=False),
    ),
)

CATEGORY_CHANGE: Final = Table(
    name="category_change",
    doc="A block's new meaning from an instant on.",
    columns=(
        *_OF_DEVICE,
        _int("allocation_id", "The block's life.", nullable=False),
        _time("time_ns", "From when.", nullable=False),
        _int("seq", "Position in the rank's log."),
        _name("category", "Its category from then on.", nullable=False),
    ),
)

WEIGHT: Final = Table(
    name="weight",
    doc="A parameter of the model.",
    key=("session_id", "attempt", "rank", "name"),
    columns=(
        *_OF_RANK,
        _text("name", "Name in the module tree.", nullable=False),
        _bytes("size_bytes", "Size of the parameter, or of this rank's shard of it."),
        _bytes("grad_size_bytes", "Size of its gradient; 0 without one of its own, as under ZeRO."),
        _text("dtype", "Element type."),
        _text("shape", "Shape, such as [768, 3072]."),
        _int("stack_id", "Where it was made; see stack_frame."),
    ),
)

MODULE: Final = Table(
    name="module",
    doc="A module of the model that ran.",
    key=("session_id", "attempt", "rank", "module"),
    columns=(
        *_OF_RANK,
        _text("module", "Path in the module tree, as in allocation.module.", nullable=False),
        _text("class", "Class of the module, such as Linear.", nullable=False),
    ),
)

KERNEL_LAUNCH: Final = Table(
    name="kernel_launch",
    doc="A kernel that ran on a device, and what launched it (imported recordings alone). Lists are text "
    "that a cast reads: layers::VARCHAR[], sequence_ids::BIGINT[]; NULL if empty.",
    columns=(
        *_OF_DEVICE,
        _int("kernel_id", "Place in the recording, from 1; unique in its rank and attempt.", nullable=False),
        _name("kernel", "The kernel's name in full, demangled where that could be done.", nullable=False),
        _name("short_name", "The name without template arguments, parameters and torch's namespaces."),
        _int("stream", "The device's stream, by the recording's number."),
        _name("grid", "Blocks of the grid, such as 640,1,1."),
        _name("block", "Threads of a block, such as 128,1,1."),
        _time("started_ns", "Start on the device.", nullable=False),
        _time("ended_ns", "End on the device.", nullable=False),
        _int("correlation_id", "The recording's number for the pair of launch and kernel."),
        _time("launched_ns", "Start of the launch on the host; NULL if the recording has none."),
        _time("launch_ended_ns", "End of the launch."),
        _int("process_id", "The process that launched it."),
        _int("thread_id", "The system's id of the launching thread."),
        _small("thread", "The same thread's number in marker and operator_call."),
        _int("call_id", "The operator call that launched it; see operator_call."),
        _name("operator", "The outermost operator around the launch, such as embedding or aten::mm."),
        _name(
            "operator_module", "Where that operator lives, such as torch.nn.functional; NULL if not recorded."
        ),
        _name("layer", "The innermost of layers."),
        _name("call_site", "The innermost of call_sites, such as train.py:106."),
        _name("direction", "forward or backward, by autograd's markers; NULL without markers."),
        _name("layers", "Names of the user's layer: ranges around the launch, outermost first; a list."),
        _name("call_sites", "The launching stack without library frames, outermost first; a list."),
        _name("operators", "Operators of the markers around the launch, outermost first; a list."),
        _name("operator_modules", "Their modules, na where not recorded; a list."),
        _name("markers", "The dictionaries of operator and arguments around the launch; a list."),
        _name("representations", "What modules around the launch state about themselves; a list."),
        _name("sequence_markers", "Autograd's markers around the launch, ordered by number; a list."),
        _name("sequence_ids", "The autograd sequence numbers it belongs to; a list."),
        _name("alternative_sequence_ids", "Other sequence numbers of its markers; a list."),
        _name(
            "between_sequence_ids",
            "For forward: sequence numbers of the markers between the forward kernel before and it; a list.",
        ),
        _int("sub_sequence", "How many kernels of the same operator and sequence number ran before it."),
    ),
)

COMPONENT_SAMPLE: Final = Table(
    name="component_sample",
    doc="What a component of the process held on a device, as it was sampled: pinned host memory about once "
    "a second, as torch's host allocator reports it; NCCL's communicators at the ends of steps, about once a "
    "second, as NCCL reports them to torch (2.14 and newer); others by imported recordings.",
    columns=(
        *_OF_DEVICE,
        _time("time_ns", "When.", nullable=False),
        _name(
            "component",
            "pinned_host; NCCL and a process group (NCCL default_pg): its communicator; or its name in the "
            "recording: HCCL, RUNTIME, GE, APP, ...",
            nullable=False,
        ),
        _bytes("reserved_bytes", "What it held from the device; pinned_host from the host."),
        _bytes(
            "active_bytes",
            "Of that in use, or waiting for another stream; NULL where torch miscounts it (before 2.13).",
        ),
        _int("seq", "Position in the rank's log; NULL in an imported recording."),
    ),
)

STATIC_BLOCK: Final = Table(
    name="static_block",
    doc="Memory that a compiled graph plans for an operator, from one of its nodes to another (imported "
    "recordings alone).",
    columns=(
        *_OF_DEVICE,
        _name("graph_id", "The graph.", nullable=False),
        _name("model", "The model it belongs to."),
        _name("operator", "The operator; TOTAL for what the graph was given in all.", nullable=False),
        _int("node_first", "Node at which the memory is taken."),
        _int("node_last", "Node at which it is given back; 4294967295 if never."),
        _bytes("size_bytes", "How much."),
    ),
)

OLDER_SEGMENT: Final = Table(
    name="older_segment",
    doc="A segment that the allocator of a device held when the recording of it began. Those that came later "
    "are events.",
    columns=(
        *_OF_DEVICE,
        _int("seq", "Position in the rank's log; before the device's first event.", nullable=False),
        _int("address", "Address of the segment on its device.", nullable=False),
        _bytes("size_bytes", "Its size.", nullable=False),
        _int("stream", "Stream of its blocks."),
        _name("pool", "Private pool as first.second id; NULL for the default pool."),
    ),
)

AVAILABILITY: Final = Table(
    name="availability",
    doc="Where the rows of events of a stretch of a rank's log are, if its summaries went first: a row when "
    "the stretch stayed on its host, another when it came or was gone. A stretch without a row came at once.",
    columns=(
        *_OF_RANK,
        _int("sequence_first", "First position of the stretch.", nullable=False),
        _int("sequence_last", "Last position of it.", nullable=False),
        _name(
            "place", "host: it stayed there; here: it came; gone: the host has it no longer.", nullable=False
        ),
        _text("spool_id", "The spool it belongs to.", nullable=False),
        _text("host_uid", "The host; see host_info."),
        _time("first_ns", "Time of its first event; NULL without events."),
        _time("last_ns", "Time of its last event."),
        _int("events", "Events in it."),
        _bytes("size_bytes", "Bytes of its rows as they are sent."),
    ),
)

CONTROL_ORDER: Final = Table(
    name="control_order",
    doc="What a rank was told while it ran, by rankmem control. What came of it is in control_change; the "
    "view control has both.",
    key=("session_id", "attempt", "rank", "order_id"),
    columns=(
        *_OF_RANK,
        _int("order_id", "The order: one for all ranks that were told.", nullable=False),
        _name("what", "start, stop, full, summary or auto: detail from step_first on.", nullable=False),
        _int("step_first", "From this step on; the same for all ranks.", nullable=False),
        _int("step_last", "Up to this step, then as before; NULL: for good."),
        _text("asked_by", "Who asked, as the client says: user@host; and the address it came from."),
        _int("asked_ns", "When the aggregator was asked.", "ns since 1970-01-01 UTC, the aggregator's clock"),
        _time("received_ns", "When the rank's shipper had it."),
        _text("obstacle", "Why the rank cannot follow it; NULL where it can."),
    ),
)

CONTROL_CHANGE: Final = Table(
    name="control_change",
    doc="Where in a rank's log an order of rankmem control came into effect, or to its end, and where the "
    "rank itself changed what it records (detail auto, RANKMEM_STEADY).",
    columns=(
        *_OF_RANK,
        _int(
            "order_id",
            "The order, see control_order; 0: none, detail was auto from the start (RANKMEM_DETAIL), or "
            "known steps are not observed (RANKMEM_STEADY).",
            nullable=False,
        ),
        _name(
            "outcome",
            "applied; over: its last step has ended, or a later order has ended it before; refused: nothing "
            "changes, since the rank's steps are calls of the model, which only full detail sees, or it "
            "cannot tell how high a step stands, by which auto chooses; auto: the rank itself chose; missed: "
            "amid a steady step a block came that no known step has there, so all is recorded again from "
            "here on, amid the step.",
            nullable=False,
        ),
        _name(
            "detail",
            "How much is recorded from here on. full: all that the rank was started for. summary: events, "
            "steps, samples and tags; no operators, stacks or modules. steady: the same for steps that are "
            "known from earlier ones, whose operators, stacks and modules the blocks have; see "
            "allocation_record.attribution.",
            nullable=False,
        ),
        _int("step", "The first step that is recorded so.", nullable=False),
        _time("time_ns", "When.", nullable=False),
        _int("seq", "Position in the rank's log.", nullable=False),
    ),
)

DETAIL_TABLES: Final = frozenset(
    {
        table.name
        for table in (MEMORY_EVENT, ALLOCATION_RECORD, ALLOCATION_END, OPERATOR_CALL, CATEGORY_CHANGE, MARKER)
    }
)
"""Those whose rows may stay on their host: as many as there are events."""

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        SESSION, HOST_INFO, RANK_INFO, DEVICE_INFO, MEMORY_EVENT, ALLOCATION_RECORD, ALLOCATION_END,
        ALLOCATION_USE,
        OPERATOR_CALL, STACK_FRAME, MARKER, STEP, STEP_INPUT, STEP_BUCKET, PROCESS_SAMPLE, OOM, GAP,
        SELF_COST, MEMORY_BUCKET, CLOCK_OFFSET, CATEGORY_CHANGE, WEIGHT, MODULE, KERNEL_LAUNCH,
        COMPONENT_SAMPLE, STATIC_BLOCK, OLDER_SEGMENT, AVAILABILITY, CONTROL_ORDER, CONTROL_CHANGE,
    )
}  # fmt: skip
"""All tables by name."""
