"""An error becomes a gRPC status: code and hint in the trailing metadata ``rankmem-code``, ``rankmem-hint``.

Stage: the aggregator's door, where a call ends. In: a :class:`RankmemError`; out: the status that
``remote`` makes the same error of again.
"""

from __future__ import annotations

from typing import Final, NoReturn

import grpc

from rankmem_protos.errors import GRPC_STATUS_NAME, RankmemError

TOLD_BYTES_MAX: Final = 2000
"""Of a message, UTF-8. gRPC writes each byte that is not ASCII as three and refuses headers from 8 KiB
on; DuckDB quotes the value that it could not convert, however long."""


def abort(
    context: grpc.ServicerContext, error: RankmemError, status: grpc.StatusCode | None = None
) -> NoReturn:
    """Ends the call with the error.

    Args:
        context: of the call.
        error: what the client is told.
        status: where another says it better than the one that belongs to the error's code.
    """
    context.set_trailing_metadata(
        (("rankmem-code", error.code.value), ("rankmem-hint", _ascii(_short(error.hint))))
    )
    context.abort(status or grpc.StatusCode[GRPC_STATUS_NAME[error.code]], _short(error.message))
    raise AssertionError("abort raises")  # for the type checker


def _short(text: str) -> str:
    told = text.encode("utf-8", "replace")
    return text if len(told) <= TOLD_BYTES_MAX else told[:TOLD_BYTES_MAX].decode("utf-8", "ignore") + "…"


def _ascii(text: str) -> str:
    """What gRPC metadata may carry: printable ASCII on one line."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)
