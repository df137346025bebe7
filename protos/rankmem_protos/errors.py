"""The one error type of rankmem and its few codes.

Stage: all of them; imports nothing of ours and nothing foreign, so that the trainer may import it.
Foreign exceptions are translated into :class:`RankmemError` where the dependency is imported
(``raise ... from exc``); the command line's door and the gRPC services are the only places that
turn one into text, an exit code or a status.
"""

from __future__ import annotations

import enum
from typing import Final


class Code(enum.StrEnum):
    """The kind of a failure; the values are on the wire and in JSON, so they never change."""

    INVALID = "invalid"
    """The caller gave something that cannot be used: a bad option, a wrong SQL, a broken recording."""
    NOT_FOUND = "not_found"
    """A named thing (file, session, rank) does not exist."""
    CONFLICT = "conflict"
    """Someone else holds it, or it has moved on: a locked database, a sequence that does not follow."""
    UNAVAILABLE = "unavailable"
    """It may work later: no connection, an aggregator that is starting or draining."""
    EXHAUSTED = "exhausted"
    """A stated limit was reached: rows, time, memory, disk."""
    DENIED = "denied"
    """The caller may not do this: no token, or SQL outside its confines."""
    UNSUPPORTED = "unsupported"
    """This machine or version cannot do it: no compiler, an old torch, a newer spool format."""
    INTERNAL = "internal"
    """A defect of ours."""


GRPC_STATUS_NAME: Final[dict[Code, str]] = {
    Code.INVALID: "INVALID_ARGUMENT",
    Code.NOT_FOUND: "NOT_FOUND",
    Code.CONFLICT: "FAILED_PRECONDITION",
    Code.UNAVAILABLE: "UNAVAILABLE",
    Code.EXHAUSTED: "RESOURCE_EXHAUSTED",
    Code.DENIED: "PERMISSION_DENIED",
    Code.UNSUPPORTED: "UNIMPLEMENTED",
    Code.INTERNAL: "INTERNAL",
}
"""Code to the name of its ``grpc.StatusCode``; names, because this module imports no grpc."""

CODE_OF_GRPC_STATUS_NAME: Final[dict[str, Code]] = {
    **{status: code for code, status in GRPC_STATUS_NAME.items()},
    "UNAUTHENTICATED": Code.DENIED,
    "DEADLINE_EXCEEDED": Code.UNAVAILABLE,
    "CANCELLED": Code.UNAVAILABLE,
}
"""The way back; a status that is not listed is ``INTERNAL``."""


STALE_KEY: Final = "rankmem-stale-bin"
"""In the initial metadata of an answer, as not each is read to its end: what it may lack while the
aggregator's store is away."""
REFUSED: Final = "this statement is refused"
"""Begins the message about one that ran as an aggregator crashed."""


class RankmemError(Exception):
    """A failure: its message, with the value, and a hint.

    Args:
        code: one of :class:`Code`.
        message: what happened, with the offending value in it; no trailing full stop.
        hint: the command or the setting to try; empty where there is none.
    """

    def __init__(self, code: Code, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (try: {self.hint})" if self.hint else self.message
