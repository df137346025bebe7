"""An error as a gRPC status: code and hint in the trailing metadata ``rankmem-code``, ``rankmem-hint``.

Stage: the aggregator's gRPC boundary, where a call ends. In: a :class:`RankmemError`; out: the status from
which ``remote`` makes the same error again.
"""

from __future__ import annotations

from typing import Final, NoReturn

import grpc

from rankmem_protos.errors import GRPC_STATUS_NAME, RankmemError

TEXT_BYTES_MAX: Final = 2000
"""Of a message, UTF-8. gRPC writes each byte that is not ASCII as three and refuses headers from 8 KiB
on; DuckDB quotes the value that it could not convert, however long."""


def abort(
    context: grpc.ServicerContext, error: RankmemError, status: grpc.StatusCode | None = None
) -> NoReturn:
    """Ends the call with the error.

    Args:
        context: of the call.
        error: for the client.
        status: instead of the one that belongs to the error's code.
    """
    context.set_trailing_metadata(
        (("rankmem-code", error.code.value), ("rankmem-hint", _ascii(_short(error.hint))))
    )
    context.abort(status or grpc.StatusCode[GRPC_STATUS_NAME[error.code]], _short(error.message))
    raise AssertionError("abort raises")  # for the type checker


def _short(text: str) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= TEXT_BYTES_MAX else data[:TEXT_BYTES_MAX].decode("utf-8", "ignore") + "…"


def _ascii(text: str) -> str:
    """The text as gRPC metadata may carry it: printable ASCII on one line."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)
