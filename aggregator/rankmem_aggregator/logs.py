"""An aggregator's log on stderr: lines for people, or JSON lines for a log collector.

Stage: wiring, once at a process's start. In: log records of this package; out: one line each. JSON lines have
time (UTC, ISO 8601), level, logger, thread, message; with an exception its type and traceback. Texts from
outside (names of shippers, errors) are escaped by JSON, and on the way to a terminal here.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal

LogFormat = Literal["text", "json"]
_TEXT: Final = "%(asctime)s %(name)s %(message)s"
_LINE_MAX: Final = 4096
"""Characters of a message: one line must not fill the log."""


class _JsonLines(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage()[:_LINE_MAX],
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = record.exc_info[0].__name__
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)  # ASCII alone: a name cannot break the line


class _Lines(logging.Formatter):
    """A line of text; control characters in it are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record as one line; a traceback follows below it."""
        line = super().formatMessage(record)
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)[
            :_LINE_MAX
        ]


def configure(log_format: LogFormat = "text") -> None:
    """Sends this package's records to stderr; others' only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format == "json" else _Lines(_TEXT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("rankmem_aggregator").setLevel(logging.INFO)
