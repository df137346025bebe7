"""What is not recorded from here on, told in the log: an OFF record, which becomes a row of ``gap``.

Stage: trainer, when something of the agent goes off. Comes in: a log and what happened. Goes out: one record.
Standard library only.
"""

from __future__ import annotations

from typing import Final, Protocol

from rankmem_agent.hooks.guard import PartGuard
from rankmem_agent.privacy import Privacy
from rankmem_agent.spool.layout import DeviceType, Kind, Missing

AGENT_OFF: Final = "agent_off"
NOT_STARTED: Final = "not_started"
DEVICE_OFF: Final = "device_off"
HOOKS_OFF: Final = "hooks_off"


class Log(Protocol):
    """What an OFF record is written to: the tap, or the writer in Python."""

    def intern(self, text: str, /) -> int:
        """The string's id."""

    def record(
        self,
        kind: Kind,
        /,
        *,
        action: int = 0,
        device_type: int = 0,
        a: int = 0,
        b: int = 0,
        d: int = 0,
        e: int = 0,
    ) -> object:
        """Appends a record."""


def tell_all(recorder: Log, why: str, detail: str) -> None:
    """No event is recorded from here on."""
    recorder.record(Kind.OFF, action=Missing.EVENTS, b=recorder.intern(detail), d=1, e=recorder.intern(why))


def tell_device(recorder: Log, device_type: DeviceType, detail: str) -> None:
    """No event of this kind of device is recorded."""
    recorder.record(
        Kind.OFF,
        action=Missing.DEVICE,
        device_type=device_type,
        a=recorder.intern(f"{device_type.name.lower()} events"),
        b=recorder.intern(detail),
        e=recorder.intern(DEVICE_OFF),
    )


def tell_part(recorder: Log, part: PartGuard, detail: str) -> None:
    """What one set of hooks tells is missing from here on."""
    tell_names(recorder, part.part, detail, infers=part.infers)


def tell_names(recorder: Log, what: str, detail: str, *, infers: bool = True) -> None:
    """These names are no longer recorded; byte figures stay exact.

    Args:
        infers: whether what blocks mean may still be inferred.
    """
    recorder.record(
        Kind.OFF,
        action=Missing.NAMES,
        a=recorder.intern(what),
        b=recorder.intern(detail),
        d=0 if infers else 1,
        e=recorder.intern(HOOKS_OFF),
    )


def fit_to_leave(detail: str, privacy: Privacy) -> str:
    """What happened as it may leave this host: without secrets; where no path may leave, its kind alone."""
    return privacy.text(detail) if privacy.files else detail.partition(":")[0]
