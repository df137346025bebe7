"""The page over HTTP: routes to answers, and what every request passes before it reaches one.

Stage: page, in uvicorn's event loop; answers run in threads. In the order of a request: host, length, where
it comes from, who sent it, headers, route. An answer is an Arrow IPC stream; a refusal is JSON: code,
message, hint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankmem_aggregator.page.answering import Answering, Pairs
from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.cache import Body
from rankmem_aggregator.page.connections import HEAD_BYTES_MAX
from rankmem_aggregator.page.door import Door
from rankmem_aggregator.page.headers import SECURITY_HEADERS, encoded
from rankmem_aggregator.page.live import Live
from rankmem_aggregator.page.parameters import read_parameters
from rankmem_aggregator.page.pool import Pool
from rankmem_aggregator.page.refusal import Refusal
from rankmem_aggregator.page.responses import body_response, error_response
from rankmem_aggregator.page.routes import DatabaseRoute, NoParameters, SessionRoute
from rankmem_aggregator.page.static_files import StaticFiles, static_folder
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

ARROW: Final = "application/vnd.apache.arrow.stream"
API: Final = "/api/v1"
URL_BYTES_MAX: Final = 8 << 10
BODY_BYTES_MAX: Final = 256 << 10
"""Of a statement of 128 KiB, whose quotes and line ends JSON writes as two characters."""
BODY_S: Final = 10.0
"""For a body to arrive."""
REQUESTS_A_CALLER: Final = 32
"""Questions of one browser or program at once: a browser has six connections."""
METHODS: Final = ("GET", "HEAD", "POST")
EVENTS: Final = "text/event-stream"
T = TypeVar("T")


@dataclass(slots=True)
class Page:
    """What the routes share."""

    pool: Pool
    door: Door
    answering: Answering = field(init=False)
    live: Live = field(init=False)

    def __post_init__(self) -> None:
        self.answering = Answering(self.pool)
        self.live = Live(self.answering)

    def close(self) -> None:
        """Ends all questions, and the readers."""
        self.pool.close()
        self.answering.computing.close()


def page_app(page: Page) -> Starlette:
    """The application."""
    routes: list[BaseRoute] = [_route(page, each) for each in ROUTES]
    routes += [
        Route(f"{API}/s/{{session}}/live", _stream(page), methods=["GET"]),
        Route("/code", _let_in(page), methods=["POST"]),
        Route("/{path:path}", StaticFiles(static_folder()).respond, methods=["GET"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, door=page.door)],
        exception_handlers={RankmemError: _refused, 404: _no_route, 405: _no_method, 500: _failed},
    )


def _route(page: Page, route: SessionRoute | DatabaseRoute) -> Route:
    if isinstance(route, DatabaseRoute):

        async def of_database(request: Request, pairs: Pairs) -> Body:
            return await page.answering.of_database(route, pairs)

        return Route(f"{API}{route.path}", _endpoint(of_database), methods=[route.method])

    async def of_session(request: Request, pairs: Pairs) -> Body:
        return await page.answering.of_session(route, request.path_params["session"], pairs)

    return Route(f"{API}/s/{{session}}{route.path}", _endpoint(of_session), methods=["GET"])


def _endpoint(answer: Callable[[Request, Pairs], Coroutine[Any, Any, Body]]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        pairs = await pairs_of(request)
        body = await _unless_gone(request.receive, answer(request, pairs))
        assert body is not None  # nobody reads it then
        return body_response(request, body, ARROW, "no-store")

    return endpoint


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
                    raise _too_long(f"the body has more than {BODY_BYTES_MAX:,} bytes", 413)
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


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
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


def _let_in(page: Page) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        code = (await json_body(request)).get("code")
        if not isinstance(code, str):
            raise RankmemError(Code.INVALID, "the body holds no code", 'send {"code": "…"} as JSON')
        client = request.client.host if request.client else ""
        cookie = page.door.let_in(code, client)
        headers = {"set-cookie": page.door.set_cookie(cookie), "cache-control": "no-store"}
        return Response(status_code=204, headers=headers)

    return endpoint


def _stream(page: Page) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        read_parameters(NoParameters, request.query_params.multi_items())
        session_id = request.path_params["session"]
        await page.answering.state(session_id)  # its errors have a status, those within a stream have none
        if request.method == "HEAD":
            return Response(media_type=EVENTS)
        caller = request.scope["rankmem.caller"]
        page.live.admit(caller)
        return _Events(page.live, caller, session_id, request.headers.get("last-event-id", ""))

    return endpoint


class _Events(Response):
    """A stream of a session's messages, until one side ends it."""

    def __init__(self, live: Live, caller: str, session_id: str, last_id: str) -> None:
        super().__init__(media_type=EVENTS, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._live, self._caller, self._session_id, self._last_id = live, caller, session_id, last_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with contextlib.suppress(RankmemError):  # the browser has gone
                await _unless_gone(receive, self._send(send))
        finally:
            self._live.leave(self._caller)

    async def _send(self, send: Send) -> None:
        async with contextlib.aclosing(self._live.messages(self._session_id, self._last_id)) as messages:
            async for message in messages:
                await send({"type": "http.response.body", "body": message, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Guard:
    """Host, length, origin, caller and headers, for every request."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door
        self._asking: Counter[str] = Counter()
        self._headers = encoded(SECURITY_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        try:
            caller = self._check(scope)
        except RankmemError as exc:
            await error_response(exc)(scope, receive, with_headers)
            return
        with contextlib.suppress(ClientDisconnect):
            if caller and not scope["path"].endswith("/live"):
                await self._counted(caller, scope, receive, with_headers)
            else:
                await self._app(scope, receive, with_headers)

    async def _counted(self, caller: str, scope: Scope, receive: Receive, send: Send) -> None:
        if self._asking[caller] >= REQUESTS_A_CALLER:
            error = RankmemError(Code.EXHAUSTED, "too many questions at once", "ask again in a moment")
            await error_response(error)(scope, receive, send)
            return
        self._asking[caller] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._asking[caller] -= 1
            if not self._asking[caller]:
                del self._asking[caller]

    def _check(self, scope: Scope) -> str:
        """Who asks the API; empty for the page's own files."""
        headers = dict(Headers(scope=scope).items())
        self._door.check_host(headers, scope["server"][0] if scope.get("server") else "")
        if len(scope["raw_path"]) + len(scope["query_string"]) > URL_BYTES_MAX:
            raise _too_long(f"the address has more than {URL_BYTES_MAX:,} bytes", 414)
        # What arrived at once was not counted while it was incomplete.
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES_MAX:
            raise _too_long(f"the headers have more than {HEAD_BYTES_MAX:,} bytes", 431)
        method = scope["method"]
        if method not in METHODS:
            raise _not_allowed(method)
        length = headers.get("content-length", "0")
        if int(length) > BODY_BYTES_MAX:  # h11 has seen that it is a number
            raise _too_long(f"the body has more than {BODY_BYTES_MAX:,} bytes", 413)
        is_api = scope["path"].startswith(f"{API}/")
        if is_api or method == "POST":
            self._door.check_origin(headers, method)
        if not is_api:
            return ""
        caller = scope["rankmem.caller"] = self._door.check_caller(headers)
        return caller


async def _refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RankmemError)
    return error_response(exc)


async def _no_route(request: Request, exc: Exception) -> Response:
    path = request.url.path[:80]
    return error_response(
        RankmemError(Code.NOT_FOUND, f"nothing is at {path!r}", "docs/page.md lists the routes")
    )


async def _no_method(request: Request, exc: Exception) -> Response:
    return error_response(_not_allowed(request.method))


async def _failed(request: Request, exc: Exception) -> Response:
    logger.error("no answer for %s", request.url.path[:200], exc_info=exc)
    error = RankmemError(
        Code.INTERNAL, "this answer failed by a defect of rankmem", "see the page's log; please report it"
    )
    return error_response(error)


def _too_long(message: str, status: int) -> RankmemError:
    return Refusal(status, Code.INVALID, message, "ask for less")


def _not_allowed(method: str) -> RankmemError:
    return Refusal(405, Code.INVALID, f"{method[:20]} is not allowed here", "docs/page.md lists the routes")
