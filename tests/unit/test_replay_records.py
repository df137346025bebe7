"""An imported event is the record that its fields' names make."""

from __future__ import annotations

from rankmem_agent.spool.layout import Action, DeviceType, Kind
from rankmem_agent.spool.records import packed
from rankmem_imports import replay as module
from rankmem_imports.recording import Identity
from rankmem_imports.replay import Replay


def test_an_event_is_packed_as_its_named_fields_are() -> None:
    fields = {
        "time_ns": 5,
        "device_type": int(DeviceType.CUDA),
        "device_index": 3,
        "address": 4096,
        "size_bytes": 17,
    }
    fields |= {"stream": 7, "pool": 8, "call_id": 9, "thread": 10}
    made = Replay(Identity("S", 0, 0))
    made.event(Action.ALLOC, **fields, stack=11)
    assert bytes(made._pending) == packed(Kind.EVENT, action=Action.ALLOC, **fields, stack_id=11)
    assert made.next_seq == 1
    assert len(made._pending) == module.RECORD_BYTES
