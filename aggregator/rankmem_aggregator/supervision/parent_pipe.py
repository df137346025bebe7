"""The messages between an aggregator's process and the parent that starts it.

Stage: wiring, both processes. The parent writes one :class:`WorkerOptions` as a line of JSON to the process's
stdin, and :data:`STOP` when it is to drain; stdin ends when the parent dies. The process writes lines of
JSON to the descriptor named in the options: ``{"ready": HOST:PORT, "metrics": HOST:PORT}`` or
``{"error": …}`` once, and ``{"cleared": fingerprint}`` for each suspect that has completed. Both processes
always run the same version.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.options import options_of
from rankmem_protos.errors import Code, RankmemError

STOP: Final = b"stop\n"

DRAINED: Final = 0
"""Exit code: it was asked to stop, and all that it had received is stored."""
FAILED: Final = 1
"""It could not open, or a thread of it died."""
NOT_DRAINED: Final = 3
"""It was asked to stop, and some of what it had received is still in the spools."""
NO_MEMORY: Final = 4
"""A thread of it died for want of memory."""

_PATHS: Final = frozenset(option.name for option in options_of(AggregatorConfig) if option.kind is Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How the process is to run."""

    config: AggregatorConfig
    events_fd: int
    """Descriptor to write events to."""
    running_fd: int
    """Descriptor of the memory shared with the parent (``running_statements``)."""
    is_embedded: bool = False
    """Within another command, which handles signals, logs and a training of its own."""
    niceness: int = 0
    """Added to that of the parent."""
    refused: dict[str, str] = field(default_factory=dict)
    """Statements by fingerprint, and why (``crashed_statements``)."""
    suspects: tuple[str, ...] = ()

    def line(self) -> bytes:
        """The options as they are sent."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        config = {
            f.name: str(value) if isinstance(value := getattr(self.config, f.name), Path) else value
            for f in dataclasses.fields(self.config)
        }
        return json.dumps(values | {"config": config}).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """The options that a line holds."""
        values = json.loads(line)
        config: dict[str, Any] = {
            name: Path(value) if name in _PATHS and value is not None else value
            for name, value in values["config"].items()
        }
        values["config"] = AggregatorConfig(**config)
        values["suspects"] = tuple(values["suspects"])
        return cls(**values)


def event_of_error(error: RankmemError) -> dict[str, Any]:
    """The event that reports an error."""
    return {"error": {"code": error.code.value, "message": error.message, "hint": error.hint}}


def error_of_event(event: dict[str, str]) -> RankmemError:
    """The error that an event reports."""
    return RankmemError(Code(event["code"]), event["message"], event["hint"])
