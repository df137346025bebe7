"""What is not recorded from here on: an OFF record in the log, which becomes a row of ``gap``.

Stage: trainer, when something of the agent goes off. Comes in: a log and what happened. Goes out: one record.
Standard library only.
"""

from __future__ import annotations

from typing import Final

from rankmem_agent.hooks.guard import PartGuard
from rankmem_agent.privacy import Privacy
from rankmem_agent.spool.layout import DeviceType, Kind, Missing
from rankmem_agent.spool.records import RecordWriter

AGENT_OFF: Final = "agent_off"
NOT_STARTED: Final = "not_started"
DEVICE_OFF: Final = "device_off"
HOOKS_OFF: Final = "hooks_off"


def record_all_off(recorder: RecordWriter, why: str, detail: str) -> None:
    """No event is recorded from here on."""
    recorder.record(
        Kind.OFF,
        missing=Missing.EVENTS,
        detail=recorder.intern(detail),
        stops_inference=1,
        why=recorder.intern(why),
    )


def record_device_off(recorder: RecordWriter, device_type: DeviceType, detail: str) -> None:
    """No event of this kind of device is recorded."""
    recorder.record(
        Kind.OFF,
        missing=Missing.DEVICE,
        device_type=device_type,
        what=recorder.intern(f"{device_type.name.lower()} events"),
        detail=recorder.intern(detail),
        why=recorder.intern(DEVICE_OFF),
    )


def record_part_off(recorder: RecordWriter, part: PartGuard, detail: str) -> None:
    """One set of hooks records nothing from here on."""
    record_names_off(recorder, part.part, detail, infers=part.infers)


def record_names_off(recorder: RecordWriter, what: str, detail: str, *, infers: bool = True) -> None:
    """These names are no longer recorded; byte figures stay exact.

    Args:
        infers: whether what blocks mean may still be inferred.
    """
    recorder.record(
        Kind.OFF,
        missing=Missing.NAMES,
        what=recorder.intern(what),
        detail=recorder.intern(detail),
        stops_inference=int(not infers),
        why=recorder.intern(HOOKS_OFF),
    )


def fit_to_leave(detail: str, privacy: Privacy) -> str:
    """The message as it may leave this host: without secrets; where no path may leave, its kind alone."""
    return privacy.text(detail) if privacy.files else detail.partition(":")[0]
