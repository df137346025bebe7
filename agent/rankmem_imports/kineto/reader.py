"""torch.profiler's traces (Kineto's Chrome JSON): allocator events with their calls, stacks, markers and
steps.

Stage: readers; the process of ``rankmem import``. In: a trace file, plain or gzip, CUDA, HIP or CPU, of
torch 1.8 to today; out: the parts of one rank. The file is read once for its columns; rank and world size
are looked up at both ends of it before. Never complete: a profiler's window begins in the middle of a
process.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_agent.spool.layout import DeviceType, Kind
from rankmem_imports.files.compressed import BROKEN, is_gzip, open_bytes
from rankmem_imports.kineto.log import KinetoLog, log_of
from rankmem_imports.kineto.recognition import NAME
from rankmem_imports.kineto.scan import UNKNOWN, Trace, base_time_ns, scan, time_ns
from rankmem_imports.parallel_groups import ProcessGroup, coordinates
from rankmem_imports.rank_numbers import rank_number, world_size_number
from rankmem_imports.recording import Closing, Identity, NothingHereError, Part, RankFacts, RankRecording
from rankmem_imports.replay import PART_RECORDS, RESERVED, Replay, with_column
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.plain_errors import plain

EDGE_BYTES: Final = 1 << 20
"""Read from either end of a trace for its facts."""

_LABEL: Final = re.compile(rb"\{[^{}]{0,200}process_labels[^{}]{0,200}\{[^{}]{0,200}\}[^{}]{0,200}\}")


def open_ranks(files: Sequence[Path]) -> Sequence[RankRecording]:
    """The one rank."""
    (path,) = files
    return (KinetoRecording(path),)


class KinetoRecording:
    """A trace."""

    def __init__(self, path: Path) -> None:
        self.source = path
        self.facts = _facts(path)
        self._log: KinetoLog | None = None
        self._unexplained: int | None = None

    def parts(self, identity: Identity) -> Iterator[Part]:
        """The replayed parts."""
        trace = scan(self.source)
        if not len(trace.memory):
            raise NothingHereError(
                f"{self.source} has {trace.num_events} events and none of memory",
                "record it with torch.profiler.profile(profile_memory=True)",
            )
        replay = Replay(identity, missing_columns={"stream"})
        try:
            _declare_devices(replay, trace)
            self._log = log = log_of(trace, replay.strings)
        except (ValueError, OverflowError, TypeError, struct.error) as error:
            raise RankmemError(
                Code.INVALID, f"{self.source} contradicts itself: {plain(error)}", "export the trace again"
            ) from error
        if not log.last_total:  # the older form
            replay.missing_columns |= RESERVED
        first = replay.next_seq
        for records in log.slices(PART_RECORDS):
            replay.records(records)
            yield _completed(replay.part(), log, first)
        yield _completed(replay.part(final=True), log, first)
        self._unexplained = _unexplained(replay, log)

    def closing(self) -> Closing:
        """Compares the replay with the totals."""
        log = self._log
        if log is None:
            return Closing(events=0)
        return Closing(
            events=log.num_events, unexplained_bytes=self._unexplained, remarks=tuple(_remarks(log))
        )


def _completed(part: Part, log: KinetoLog, first: int) -> Part:
    """The part without stand-in addresses, and with the modules of blocks in no call.

    Args:
        first: where in the replay the log begins.
    """
    rows = []
    for table, batch in part.rows:
        if table == "allocation_record" and log.modules:
            batch = _with_modules(batch, log.modules, first)
        rows.append((table, log.stand_ins.without(table, batch)))
    return part._replace(rows=rows)


def _with_modules(batch: pa.RecordBatch, modules: Mapping[int, str], first: int) -> pa.RecordBatch:
    """The blocks' rows with the module by the place of their alloc, where their call says none."""
    own = batch.column("module")
    known = [modules.get(number - first) for number in batch.column("allocation_id").to_pylist()]
    return with_column(batch, "module", pc.coalesce(own, pa.array(known, pa.string()).cast(own.type)))


def _remarks(log: KinetoLog) -> Iterator[str]:
    yield "a profiler's window: what lies before and after it is not in the trace"
    if log.older_bytes:
        yield f"{log.older_bytes} bytes are from before the recording"
    if log.missing_bytes:
        yield f"{log.missing_bytes} bytes of them are not in the trace's first totals"
    if not log.last_total:
        yield (
            "the older form, without addresses and totals: sums run from the first event, and a free gives "
            "back a block of its size"
        )
    if log.stand_ins.ambiguous:
        yield (
            f"{len(log.stand_ins.ambiguous)} blocks have no operator: a free may have been of another block "
            "of their size"
        )
    elif any(device >> 8 != DeviceType.CPU for device in log.last_total):
        yield "sizes are the allocator's rounded blocks; a free's block may wait for its stream"
    if log.num_shared:
        yield f"{log.num_shared} events are of shared memory, which the host allocator's totals leave out"
    if log.contradicted:
        yield f"{log.contradicted} events change the total by another amount than their bytes"


def _unexplained(replay: Replay, log: KinetoLog) -> int | None:
    """Replayed totals minus the allocator's own after the last event; None where it states none."""
    if not log.last_total:
        return None
    totals = {int(row["code"]): int(row["requested"]) for row in replay.state.devices}
    return sum(totals[device] - total for device, total in log.last_total.items())


def _declare_devices(replay: Replay, trace: Trace) -> None:
    """Records the trace's facts on the devices of its memory events."""
    found = trace.memory
    pairs = sorted(set(zip(found["device_type"].tolist(), found["device_index"].tolist(), strict=True)))
    properties = trace.fields.get("deviceProperties")
    by_id = (
        {p.get("id"): p for p in properties if isinstance(p, dict)} if isinstance(properties, list) else {}
    )
    for kind, index in pairs:
        device = {} if index == UNKNOWN else by_id.get(index, {})
        facts: dict[str, Any] = {
            "source": NAME,
            "name": device.get("name") if isinstance(device.get("name"), str) else None,
            "total_bytes": device.get("totalGlobalMem")
            if isinstance(device.get("totalGlobalMem"), int)
            else None,
        }
        replay.record(
            Kind.DEVICE,
            time_ns=int(found["time"].min()) + trace.base_ns - 1,  # before the older blocks
            device_type=kind,
            device_index=max(index, 0),
            facts=replay.strings.intern(json.dumps(facts)),
        )


def _facts(path: Path) -> RankFacts:
    """The facts at the ends of the file: distributedInfo and the profiler's own range."""
    try:
        head, tail = _edges(path)
    except BROKEN as error:
        raise RankmemError(
            Code.INVALID, f"{path} cannot be read: {error}", "copy the trace again from where it was made"
        ) from error
    info = _field(head, tail, b'"distributedInfo"')
    info = info if isinstance(info, dict) else {}
    rank, world_size = info.get("rank"), info.get("world_size")
    try:
        base_ns = base_time_ns(_field(head, tail, b'"baseTimeNanoseconds"'))
    except ValueError:
        base_ns = 0  # reported when the file is read
    started, ended = _window(head + tail, base_ns)
    return RankFacts(
        rank=None if rank is None else rank_number(path, rank),
        world_size=None if world_size is None else world_size_number(path, world_size),
        coordinates=coordinates(list(_groups(info)), {}),
        pid=_process(head + tail),
        started_ns=started,
        ended_ns=ended,
    )


def _groups(info: dict[str, Any]) -> Iterator[ProcessGroup]:
    """The process groups of ``pg_config``, as torch 2.4 and later write them, that name this rank."""
    configs = info.get("pg_config")
    for group in configs if isinstance(configs, list) else ():
        name, ranks = (group.get("pg_desc"), group.get("ranks")) if isinstance(group, dict) else (None, None)
        if isinstance(name, str) and isinstance(ranks, list) and info.get("rank") in ranks:
            yield ProcessGroup(name, ranks.index(info["rank"]))


def _edges(path: Path) -> tuple[bytes, bytes]:
    """The first and the last EDGE_BYTES."""
    with open_bytes(path) as file:
        head = tail = file.read(EDGE_BYTES)
        if not is_gzip(path):  # no need to read what lies between
            file.seek(max(path.stat().st_size - EDGE_BYTES, len(head)))
        while chunk := file.read(EDGE_BYTES):
            tail = (tail + chunk)[-EDGE_BYTES:]
    return head, tail


def _field(head: bytes, tail: bytes, name: bytes) -> Any:
    """The value of a field of the outermost object, if one of the ends has it whole."""
    for text in (head, tail):
        at = text.find(name)
        if at >= 0:
            rest = text[at + len(name) :].decode("utf-8", "replace").lstrip().removeprefix(":").lstrip()
            try:
                return json.JSONDecoder().raw_decode(rest)[0]
            except (json.JSONDecodeError, RecursionError):
                continue
    return None


def _process(text: bytes) -> int | None:
    """The process that was profiled: the one whose label is CPU, where the metadata stand at an end."""
    for match in _LABEL.finditer(text):
        try:
            event = json.loads(match[0])
        except (json.JSONDecodeError, UnicodeDecodeError):
            continue
        if event.get("args") == {"labels": "CPU"}:
            return _count(event.get("pid"))
    return None


def _window(text: bytes, base_ns: int) -> tuple[int | None, int | None]:
    """Start and end of the range that the profiler writes around the whole trace."""
    at = text.rfind(b'"cat": "Trace"')
    at = at if at >= 0 else text.rfind(b'"cat":"Trace"')
    begin = text.rfind(b"{", 0, max(at, 0))
    if at < 0 or begin < 0:
        return None, None
    try:
        event = json.JSONDecoder(parse_float=str).raw_decode(text[begin:].decode("utf-8", "replace"))[0]
        start = time_ns(event["ts"]) + base_ns
        return start, start + time_ns(event["dur"])
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError):
        return None, None


def _count(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 12:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
