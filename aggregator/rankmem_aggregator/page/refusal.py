"""A request that is refused before it reaches an answer: an error with the HTTP status that says why.

Stage: page. Imports no web framework.
"""

from __future__ import annotations

from typing import Final

from rankmem_protos.errors import Code, RankmemError

STATUS_OF: Final = {
    Code.INVALID: 400,
    Code.NOT_FOUND: 404,
    Code.CONFLICT: 409,
    Code.UNAVAILABLE: 503,
    Code.EXHAUSTED: 429,
    Code.DENIED: 403,
    Code.UNSUPPORTED: 501,
    Code.INTERNAL: 500,
}


class Refusal(RankmemError):
    """An error with a status of its own."""

    def __init__(self, status: int, code: Code, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint)
        self.status = status


def status_of(error: RankmemError) -> int:
    """The HTTP status of an error."""
    return error.status if isinstance(error, Refusal) else STATUS_OF[error.code]


def told(error: RankmemError) -> dict[str, str]:
    """What a client is told of an error: never a stack trace."""
    return {"code": error.code.value, "message": error.message, "hint": error.hint}
