"""Answers and files that a browser saves: rows in the formats of other programs, files of other tools.

Stage: page, in uvicorn's event loop; they are made in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from rankmem_aggregator.page.answering import Answering, Pairs
from rankmem_aggregator.page.cache import Body
from rankmem_aggregator.page.exported import FILES, FORMATS, FileAsked, file_of
from rankmem_aggregator.page.parameters import read_parameters
from rankmem_aggregator.page.pool import Ticket
from rankmem_aggregator.page.requests import pairs_of, unless_gone
from rankmem_aggregator.page.responses import SlicedResponse
from rankmem_protos.errors import Code, RankmemError

Answer = Callable[[Request, Pairs], Coroutine[Any, Any, Body]]


def export_endpoint(answering: Answering, answer: Answer) -> Callable[[Request], Any]:
    """The endpoint of a route's answer in the format that the path names."""

    async def endpoint(request: Request) -> Response:
        kind = request.path_params["kind"]
        found = FORMATS.get(kind)
        if found is None:
            raise _no_format(kind, FORMATS)
        body = await unless_gone(request.receive, answer(request, await pairs_of(request)))

        def write(ticket: Ticket) -> bytes:
            with pa.ipc.open_stream(pa.py_buffer(body.plain())) as reader:
                return found.write(reader.read_all())

        made = await answering.computed(("export", kind, body.tag), write)
        return _attached(made, found.end, found.media_type)

    return endpoint


def file_endpoint(answering: Answering) -> Callable[[Request], Any]:
    """The endpoint of a session's files for other tools."""

    async def endpoint(request: Request) -> Response:
        kind, session_id = request.path_params["kind"], request.path_params["session"]
        if kind not in FILES:
            raise _no_format(kind, FILES)
        _, end, media_type = FILES[kind]
        pairs = await pairs_of(request)
        asked = read_parameters(FileAsked, pairs)
        work = answering.file(
            session_id, (kind, *map(str, pairs)), lambda reading: file_of(reading, kind, asked)
        )
        return _attached(await unless_gone(request.receive, work), end, media_type)

    return endpoint


def _attached(body: bytes, end: str, media_type: str) -> Response:
    """A response that a browser saves and never shows."""
    disposition = f'attachment; filename="rankmem.{end}"'
    return SlicedResponse(
        body,
        media_type=media_type,
        headers={"content-disposition": disposition, "cache-control": "no-store"},
    )


def _no_format(kind: str, known: Iterable[str]) -> RankmemError:
    return RankmemError(
        Code.NOT_FOUND, f"there is no export {kind[:60]!r} here", f"one of {', '.join(known)}"
    )
