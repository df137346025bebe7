"""Pairing done slowly and obviously: one record at a time, with dictionaries.

The oracle of the property tests. It shares no code with rankmem_ship.pairing; it does what
docs/internals.md describes, in the plainest way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rankmem_agent.spool.layout import NO_SEQUENCE, UNKNOWN, Action, DeviceType, Kind, MarkerKind

Record = dict[str, int]
PHASES = ("other", "forward", "backward", "optimizer")


@dataclass
class Oracle:
    """Feed records in order, then :meth:`finish`."""

    base_ns: int
    torchs_own: frozenset[int] = frozenset()
    """String ids of names that are no annotation."""
    recomputing: frozenset[int] = frozenset()
    """Stack ids that show a forward within backward."""
    now_ns: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    allocations: dict[int, dict[str, Any]] = field(default_factory=dict)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    markers: dict[int, dict[str, Any]] = field(default_factory=dict)
    totals: list[tuple[int, str, int, int]] = field(default_factory=list)
    """(seq, device, time, requested) after every point."""
    requested: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    figures: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    moving: set[str] = field(default_factory=set)
    """Devices whose events change the figures."""
    alive: dict[tuple[str, int], int] = field(default_factory=dict)
    num_older: int = 0
    open_markers: dict[int, list[int]] = field(default_factory=dict)
    phases: dict[int, str] = field(default_factory=dict)
    """By thread, of its last call."""
    step: int | None = None
    told: set[str] = field(default_factory=set)
    """Devices with a DEVICE record."""
    losses: list[tuple[int, int]] = field(default_factory=list)

    def feed(self, seq: int, record: Record) -> None:
        self.now_ns = max(self.now_ns, record["time_ns"] + self.base_ns)
        kind = record["kind"]
        if kind == Kind.EVENT:
            self._event(seq, record)
        elif kind == Kind.PREEXISTING:
            self._older(seq, record)
        elif kind == Kind.COUNTERS:
            self.figures[device_of(record)] = (None if record["a"] == UNKNOWN else record["a"], record["b"])
            (self.moving.add if record["e"] else self.moving.discard)(device_of(record))
        elif kind == Kind.ROUNDING:
            self._move(device_of(record), record["a"], record["b"] - (record["b"] >> 63 << 64))
        elif kind in (Kind.CALL_BEGIN, Kind.CALL_FORWARD, Kind.CALL_END):
            self._call(seq, record)
        elif kind in (Kind.MARKER_BEGIN, Kind.MARKER_END):
            self._marker(record)
        elif kind == Kind.STEP:
            self.step = record["a"] + 1
            self.phases = dict.fromkeys(self.phases, "other")
        elif kind == Kind.DEVICE:
            self._device(seq, device_of(record))
        elif kind == Kind.LOST:
            self.losses.append((seq, 1 if record["a"] == UNKNOWN else record["a"]))
        if kind in (Kind.EVENT, Kind.PREEXISTING, Kind.COUNTERS, Kind.PEAKS, Kind.ROUNDING):
            device = device_of(record)
            self.totals.append((seq, device, self.now_ns, self.requested.get(device, 0)))

    def finish(self) -> None:
        for call in sorted(self.calls.values(), key=lambda call: call["end_seq"] or 0):
            self._attribute(call)
        for allocation in self.allocations.values():
            made_by = self.calls.get(allocation["call_id"] or 0)
            if made_by is None:
                continue
            names = ("operator", "module", "annotation", "step", "phase", "stack", "forward_stack")
            allocation |= {name: made_by[name] for name in (*names, "forward_call_id", "recomputed")}

    def _attribute(self, call: dict[str, Any]) -> None:
        ended, in_backward = call["ended_ns"] is not None, call["phase"] == "backward"
        shown = call["stack"] in self.recomputing if call["stack"] else call["with_grad"] and call["module"]
        call["recomputed"] = bool(ended and in_backward and shown)
        call |= {"forward_call_id": None, "forward_stack": 0}
        forward = self._forward(call) if ended and not call["recomputed"] else None
        if forward is not None:
            call |= {"forward_call_id": forward["call_id"], "forward_stack": forward["stack"]}
            call["module"] = forward["module"] or call["module"]
            call["annotation"] = call["annotation"] or forward["annotation"]

    def _move(self, device: str, *changes: int) -> None:
        if device in self.moving:
            allocated, active = (
                None if figure is None else max(figure + change, 0)
                for figure, change in zip(self.figures[device], changes, strict=True)
            )
            self.figures[device] = (allocated, active)

    def _event(self, seq: int, record: Record) -> None:
        device, action, address = device_of(record), record["action"], record["a"]
        size, allocation_id = record["b"], None
        if action == Action.ALLOC:
            self._make(device, address, seq, record, older=False)
            allocation_id = seq
        elif action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            allocation_id = self.alive.get((device, address))
            if allocation_id is not None:
                size = self._free(device, address, seq, action, record["call_id"])
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            self.reserved[device] = self.reserved.get(device, 0) + size
        elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            self.reserved[device] = max(self.reserved.get(device, 0) - size, 0)
        rounded = max(-(-record["b"] // 512), 1) * 512
        if action == Action.ALLOC:
            self._move(device, rounded, rounded)
        elif action == Action.FREE_REQUESTED:
            self._move(device, -rounded, 0)
        elif action == Action.FREE_COMPLETED:
            self._move(device, 0, -rounded)
        allocated, active = self.figures.get(device, (None, None))
        on_host = device in ("cpu", "pinned")
        self.events.append(
            {
                "seq": seq,
                "device": device,
                "time_ns": self.now_ns,
                "action": Action(action).name.lower(),
                "address": address,
                "size_bytes": size,
                "requested_bytes": self.requested.get(device, 0),
                "allocated_bytes": None if on_host else allocated,
                "active_bytes": None if on_host else active,
                "reserved_bytes": None if on_host else self.reserved.get(device, 0),
                "allocation_id": allocation_id,
                "call_id": record["call_id"] or None,
                "thread": record["thread"],
            }
        )

    def _make(self, device: str, address: int, seq: int, record: Record, *, older: bool) -> None:
        before = self.alive.pop((device, address), None)
        if before is not None:  # its free was never seen; it is gone now at the latest
            self.requested[device] -= self.allocations[before]["size_bytes"]
            self.allocations[before] |= {"freed_ns": self.now_ns, "freed_seq": seq}
        allocation_id = seq
        if older:
            allocation_id, self.num_older = -1 - self.num_older, self.num_older + 1
        self.alive[device, address] = allocation_id
        self.requested[device] = self.requested.get(device, 0) + record["b"]
        self.allocations[allocation_id] = {
            "allocation_id": allocation_id,
            "device": device,
            "address": address,
            "size_bytes": record["b"],
            "call_id": None if older else record["call_id"] or None,
            "allocated_ns": None if older else self.now_ns,
            "free_requested_ns": None,
            "free_requested_seq": None,
            "freed_ns": None,
            "freed_seq": None,
            "preexisting": older,
            **dict.fromkeys(("operator", "module", "annotation", "stack", "forward_stack"), 0),
            **dict.fromkeys(("phase", "step", "forward_call_id")),
            "recomputed": False,
        }
        if not older and not record["call_id"]:
            thread = record["thread"]
            around = {"phase": self.phases.get(thread), "step": self.step}
            self.allocations[allocation_id] |= around | {"annotation": self._annotation(thread)}
        call = self.calls.get(record["call_id"])
        if not older and call is not None and call["ended_ns"] is None:
            call["allocated_bytes"] += record["b"]
            call["allocations"] += 1

    def _free(self, device: str, address: int, seq: int, action: int, call_id: int) -> int:
        allocation = self.allocations[self.alive[device, address]]
        if action == Action.FREE_REQUESTED:
            if allocation["free_requested_seq"] is None:
                allocation |= {"free_requested_ns": self.now_ns, "free_requested_seq": seq}
        else:
            allocation |= {"freed_ns": self.now_ns, "freed_seq": seq}
            self.requested[device] -= allocation["size_bytes"]
            del self.alive[device, address]
            call = self.calls.get(call_id)
            if call is not None and call["ended_ns"] is None:
                call["freed_bytes"] += allocation["size_bytes"]
        return int(allocation["size_bytes"])

    def _older(self, seq: int, record: Record) -> None:
        device = device_of(record)
        if record["action"] == Action.SEGMENT_ALLOC:
            self.reserved[device] = self.reserved.get(device, 0) + record["b"]
        elif (device, record["a"]) not in self.alive:
            self._make(device, record["a"], seq, record, older=True)

    def _call(self, seq: int, record: Record) -> None:
        call_id = record["call_id"]
        if record["kind"] == Kind.CALL_BEGIN:
            self.calls[call_id] = {
                "call_id": call_id,
                "operator": record["e"],
                "module": record["b"],
                "annotation": self._annotation(record["thread"]),
                "step": record["c"],
                "phase": PHASES[record["action"]],
                "thread": record["thread"],
                "started_ns": record["a"] + self.base_ns,
                "ended_ns": None,
                "end_seq": None,
                "sequence_first": None,
                "sequence_last": None,
                "forward_thread": None,
                "forward_sequence": None,
                "stack": 0,
                "with_grad": False,
                "allocated_bytes": 0,
                "freed_bytes": 0,
                "allocations": 0,
            }
            self.step, self.phases[record["thread"]] = record["c"], PHASES[record["action"]]
            return
        call = self.calls.get(call_id)
        if call is None or call["ended_ns"] is not None:
            return
        if record["kind"] == Kind.CALL_FORWARD and call["forward_thread"] is None:
            call |= {"forward_thread": record["a"], "forward_sequence": record["b"], "phase": "backward"}
        elif record["kind"] == Kind.CALL_END:
            call |= {"ended_ns": self.now_ns, "end_seq": seq, "stack": record["e"]}
            call["with_grad"] = bool(record["d"])
            if record["b"] != NO_SEQUENCE:
                call |= {"sequence_first": record["b"], "sequence_last": record["c"]}

    def _forward(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """The call whose autograd numbers enclose the node's; of nested ones the innermost."""
        if call["forward_thread"] is None:
            return None
        around = [
            other
            for other in self.calls.values()
            if other["thread"] == call["forward_thread"]
            and other["sequence_first"] is not None
            and other["sequence_first"] <= call["forward_sequence"] <= other["sequence_last"]
        ]
        innermost = max(around, key=lambda other: other["sequence_first"], default=None)
        return innermost if innermost is not None and innermost["end_seq"] < call["end_seq"] else None

    def _marker(self, record: Record) -> None:
        if record["kind"] == Kind.MARKER_BEGIN:
            open_here = self.open_markers.setdefault(record["thread"], [])
            self.markers[record["a"]] = {
                "marker_id": record["a"],
                "started_ns": self.now_ns,
                "ended_ns": None,
                "depth": len(open_here),
                "thread": record["thread"],
                "annotation": self._annotation_of(record),
            }
            open_here.append(record["a"])
            return
        for open_there in self.open_markers.values():
            if record["a"] in open_there:
                self.markers[record["a"]]["ended_ns"] = self.now_ns
                open_there.remove(record["a"])

    def _annotation_of(self, record: Record) -> int:
        if record["action"] in (MarkerKind.ANNOTATE, MarkerKind.NVTX):
            return record["e"]
        is_users = record["action"] == MarkerKind.USER_SCOPE and record["e"] not in self.torchs_own
        return record["e"] if is_users else 0

    def _annotation(self, thread: int) -> int:
        names = [self.markers[marker]["annotation"] for marker in self.open_markers.get(thread, [])]
        return next((name for name in reversed(names) if name), 0)

    def _device(self, seq: int, device: str) -> None:
        if device not in self.told:
            self.told.add(device)
            return
        for where in sorted(key for key in self.alive if key[0] == device):
            allocation = self.allocations[self.alive.pop(where)]
            allocation |= {"freed_ns": self.now_ns, "freed_seq": seq}
            self.requested[device] -= allocation["size_bytes"]
            self.totals.append((seq, device, self.now_ns, self.requested[device]))


def device_of(record: Record) -> str:
    kind, index = record["device_type"], record["device_index"]
    if kind == DeviceType.CPU:
        return "cpu"
    return "pinned" if kind == DeviceType.PINNED else f"cuda:{index}"
