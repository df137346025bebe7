"""Responses: an answer's bytes in slices, and an error as JSON.

Stage: page, in uvicorn's event loop.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from rankmem_aggregator.page.cache import Body
from rankmem_aggregator.page.refusal import status_of, told
from rankmem_protos.errors import RankmemError

SLICE_BYTES: Final = 256 << 10
"""What a connection holds of an answer at a time: a slow reader of 16 MiB does not take 16 MiB more."""


class SlicedResponse(Response):
    """A response that waits for its reader slice by slice."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for begin in range(0, max(1, len(body)), SLICE_BYTES):
            end = begin + SLICE_BYTES
            more = end < len(body)
            await send({"type": "http.response.body", "body": bytes(body[begin:end]), "more_body": more})


def body_response(request: Request, body: Body, kind: str, kept: str) -> Response:
    """An answer, or 304 where the client has it.

    Args:
        kept: the header ``cache-control``.
    """
    headers = {"etag": body.tag, "cache-control": kept, "vary": "accept-encoding"}
    if body.tag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    if body.is_packed and _takes_gzip(request):
        headers["content-encoding"] = "gzip"
        return SlicedResponse(body.data, media_type=None, headers={**headers, "content-type": kind})
    return SlicedResponse(body.plain(), media_type=None, headers={**headers, "content-type": kind})


def error_response(error: RankmemError) -> Response:
    """An error for people and programs."""
    headers = {"cache-control": "no-store"}
    if (status := status_of(error)) == 401:
        headers["www-authenticate"] = "Bearer"
    if status == 405:
        headers["allow"] = "GET, HEAD, POST"
    return JSONResponse(told(error), status_code=status, headers=headers)


def _takes_gzip(request: Request) -> bool:
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0")
    return False
