"""TensorFlow's RunMetadata and StepStats: tensors as blocks, nodes as operator calls, allocators as devices.

Stage: readers; the process of ``rankmem import``. In: a file, binary or text; out: the parts of one rank.
Facts on a tensor are by timeline.py's rule (``lives``): it has no address, its bytes are the
requested ones, its life ends with the last node that reads it. The highest total of an allocator and
the tensors alive then are AllocationMaximum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from rankmem_agent.spool.layout import Action, DeviceType, Kind
from rankmem_imports.recording import Closing, Identity, Part, RankFacts, RankRecording
from rankmem_imports.replay import RESERVED, Replay, with_column
from rankmem_imports.tensorflow.lives import Lives, Tensor, changes
from rankmem_imports.tensorflow.open_calls import KnownCall, OpenCalls
from rankmem_imports.tensorflow.recognition import NAME
from rankmem_imports.tensorflow.stats import nodes_of
from rankmem_protos import tables
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.plain_errors import plain

ALLOCATORS_MAX: Final = 256
"""Of one file: a machine with 16 GPUs has 40."""

_STAND_IN: Final = DeviceType.PRIVATEUSE1
"""An allocator's device within the log, by its number; the rows then say the allocator's own."""
_GPU: Final = re.compile(r"GPU_(\d{1,3})_bfc")
_HOST: Final = ("cpu", "mklcpu")
_PINNED: Final = ("cuda_host_bfc", "gpu_host_bfc")
_MISSING_COLUMNS: Final = RESERVED | {"stream"}


def open_ranks(files: Sequence[Path]) -> Sequence[RankRecording]:
    """The one rank."""
    (path,) = files
    return (TensorflowRecording(path),)


class TensorflowRecording:
    """A step, or several in one file."""

    def __init__(self, path: Path) -> None:
        self.source = path
        self.facts = RankFacts()
        self._closing = Closing(events=0)

    def parts(self, identity: Identity) -> Iterator[Part]:
        """The replay's."""
        lives = Lives()
        num_nodes = 0
        for device, node in nodes_of(self.source):
            num_nodes += 1
            try:
                lives.add(device, node)
            except (ValueError, OverflowError) as error:
                raise RankmemError(
                    Code.INVALID,
                    f"{self.source}: node {num_nodes} ({node.node_name[:80]!r}): {plain(error)}",
                    "save the step again",
                ) from error
        tensors = lives.end()
        if not tensors:
            raise RankmemError(
                Code.INVALID,
                f"{self.source} has {num_nodes} nodes and no tensor",
                "run the step with RunOptions(trace_level=RunOptions.FULL_TRACE)",
            )
        kept = [tensor for tensor in tensors.values() if tensor.ended_us > tensor.created_us]
        log = _TensorLog(identity, self.source, kept)
        yield from log.parts()
        self._closing = Closing(
            events=2 * len(kept), remarks=tuple(_remarks(lives, len(tensors) - len(kept)))
        )

    def closing(self) -> Closing:
        """A step out of a process; never complete."""
        return self._closing


def device_of(allocator: str) -> str:
    """The device whose memory an allocator hands out; its own name where that is not known."""
    if match := _GPU.fullmatch(allocator):
        return f"cuda:{int(match[1])}"
    if allocator in _HOST:
        return "cpu"
    return "pinned" if allocator in _PINNED else allocator or "unknown"


def devices_of(allocators: Sequence[str]) -> list[str]:
    """A device for each allocator, no device twice: their totals are separate."""
    taken: dict[str, str] = {}
    for allocator in allocators:
        device = device_of(allocator)
        taken[allocator] = device if device not in taken.values() else allocator
    return [taken[allocator] for allocator in allocators]


def _remarks(lives: Lives, without_life: int) -> Iterator[str]:
    yield "lives by the rule of TensorFlow's timeline.py: to the last node that reads, not to the free"
    if without_life:
        yield f"{without_life} tensors lived less than a microsecond: in no total, as in timeline.py"
    if lives.without_memory:
        yield f"{lives.without_memory} outputs have neither bytes nor an allocator: left out"
    if lives.replaced:
        yield f"{lives.replaced} tensors were output again under the same name: the last one counts"


class _TensorLog:
    """The log of one file's tensors."""

    def __init__(self, identity: Identity, source: Path, tensors: Sequence[Tensor]) -> None:
        self._replay = Replay(identity, missing_columns=_MISSING_COLUMNS, constants={"component": NAME})
        self._calls = OpenCalls(self._replay)
        self._tensors = tensors
        allocators = list(dict.fromkeys(tensor.allocator for tensor in tensors))
        if len(allocators) > ALLOCATORS_MAX:
            raise RankmemError(
                Code.EXHAUSTED, f"{source} has {len(allocators)} allocators, at most {ALLOCATORS_MAX}"
            )
        self._number = {allocator: number for number, allocator in enumerate(allocators)}
        self._device = {
            f"privateuseone:{number}": device for number, device in enumerate(devices_of(allocators))
        }
        self._place = {tensor.name: place for place, tensor in enumerate(tensors, start=1)}

    def parts(self) -> Iterator[Part]:
        """The rows."""
        call_ids: dict[tuple[str, int], int] = {}
        found = changes(self._tensors)
        if found:
            self._declare(found[0][0] * 1000)
        for time_us, _, tensor in found:
            is_alloc = time_us == tensor.created_us
            self._calls.end(before_ns=time_us * 1000)
            call_id = 0
            if is_alloc:
                call_id = call_ids.setdefault((tensor.node, tensor.created_us), len(call_ids) + 1)
                self._calls.begin(_call(tensor, call_id), time_us * 1000)
            self._replay.event(
                Action.ALLOC if is_alloc else Action.FREE_COMPLETED,
                time_ns=time_us * 1000,
                device_type=_STAND_IN,
                device_index=self._number[tensor.allocator],
                address=self._place[tensor.name],
                size_bytes=tensor.size_bytes,
                call_id=call_id,
                thread=_thread(tensor) if is_alloc else 0,
            )
            if self._replay.is_full:
                yield self._named(self._replay.part())
        self._calls.end(before_ns=None)
        yield self._named(self._replay.part(final=True))

    def _declare(self, time_ns: int) -> None:
        for allocator, number in self._number.items():
            facts = {"source": NAME, "allocator": allocator}
            self._replay.record(
                Kind.DEVICE,
                time_ns=time_ns,
                device_type=_STAND_IN,
                device_index=number,
                facts=self._replay.strings.intern(json.dumps(facts)),
            )

    def _named(self, part: Part) -> Part:
        """The part with the allocators' devices, and the tensors' names in place of stand-in addresses."""
        rows = []
        for table, batch in part.rows:
            if table == "allocation_record":
                names = [self._tensors[place - 1].name for place in batch.column("address").to_pylist()]
                batch = _with_names(batch, "annotation", names)
            if "address" in batch.schema.names:
                batch = with_column(batch, "address", pa.nulls(batch.num_rows, pa.int64()))
            if "device" in batch.schema.names:
                devices = [self._device.get(name, name) for name in batch.column("device").to_pylist()]
                batch = _with_names(batch, "device", devices)
            rows.append((table, batch))
        return part._replace(rows=rows)


def _call(tensor: Tensor, call_id: int) -> KnownCall:
    return KnownCall(
        number=call_id,
        operator=tensor.operator,
        started_ns=tensor.created_us * 1000,
        ended_ns=tensor.node_ended_us * 1000,
        thread=_thread(tensor),
        module=tensor.node,
    )


def _thread(tensor: Tensor) -> int:
    return tensor.thread & 0x7FFF_FFFF


def _with_names(batch: pa.RecordBatch, column: str, names: list[Any]) -> pa.RecordBatch:
    return with_column(batch, column, pa.array(names, pa.string()).dictionary_encode().cast(tables.NAME))
