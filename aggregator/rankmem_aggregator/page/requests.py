"""What a request brings: its parameters, its body, and whether its browser is still there.

Stage: page, in uvicorn's event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from rankmem_aggregator.page.refusal import Refusal
from rankmem_protos.errors import Code, RankmemError

BODY_BYTES_MAX: Final = 256 << 10
"""Of a statement of 128 KiB, whose quotes and line ends JSON writes as two characters."""
BODY_S: Final = 10.0
"""For a body to arrive."""
T = TypeVar("T")


async def pairs_of(request: Request) -> list[tuple[str, str]]:
    """The parameters of a request: of its address, or for POST also of its body, a JSON object.

    Raises:
        RankmemError: INVALID for another body, or one that is too long.
    """
    pairs = request.query_params.multi_items()
    if request.method != "POST":
        return pairs
    given = await json_body(request)
    return [*pairs, *((name, _text_of(name, value)) for name, value in given.items())]


async def json_body(request: Request) -> dict[str, Any]:
    """The JSON object that a request's body is.

    Raises:
        RankmemError: INVALID for another body, one that is too long, or one that does not arrive.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, Code.INVALID, "the body is not JSON", "send content-type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise too_long(f"the body has more than {BODY_BYTES_MAX:,} bytes", 413)
    except TimeoutError:
        raise Refusal(
            408, Code.INVALID, f"the body did not arrive within {BODY_S:g} s", "send it again"
        ) from None
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise RankmemError(Code.INVALID, "the body is not a JSON object", 'send {"name": "value"}')
    return given


def _text_of(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RankmemError(Code.INVALID, f"{name[:60]!r} is neither a text nor a whole number", "send one")
    return str(value)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; it is given up when the browser goes.

    Raises:
        RankmemError: UNAVAILABLE, which nobody reads, where it has gone.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RankmemError(Code.UNAVAILABLE, "the browser has gone", "")
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def too_long(message: str, status: int) -> RankmemError:
    """The refusal of what is longer than it may be."""
    return Refusal(status, Code.INVALID, message, "ask for less")
