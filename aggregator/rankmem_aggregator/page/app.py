"""The page over HTTP: routes to answers, and what every request passes before it reaches one.

Stage: page, in uvicorn's event loop; answers run in threads. In the order of a request: host, length, where
it comes from, who sent it, headers, route. An answer is an Arrow IPC stream; a refusal is JSON: code,
message, hint.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankmem_aggregator.page.answering import Answering, Pairs
from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.attachments import Answer, export_endpoint, file_endpoint
from rankmem_aggregator.page.cache import Body
from rankmem_aggregator.page.connections import HEAD_BYTES_MAX
from rankmem_aggregator.page.door import Door
from rankmem_aggregator.page.headers import SECURITY_HEADERS, encoded
from rankmem_aggregator.page.live import Live
from rankmem_aggregator.page.parameters import read_parameters
from rankmem_aggregator.page.pool import Pool
from rankmem_aggregator.page.refusal import Refusal
from rankmem_aggregator.page.requests import BODY_BYTES_MAX, json_body, pairs_of, too_long, unless_gone
from rankmem_aggregator.page.responses import body_response, error_response
from rankmem_aggregator.page.routes import DatabaseRoute, NoParameters, SessionRoute
from rankmem_aggregator.page.static_files import StaticFiles, static_folder
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

ARROW: Final = "application/vnd.apache.arrow.stream"
API: Final = "/api/v1"
URL_BYTES_MAX: Final = 8 << 10
REQUESTS_A_CALLER: Final = 32
"""Questions of one browser or program at once: a browser has six connections."""
METHODS: Final = ("GET", "HEAD", "POST")
EVENTS: Final = "text/event-stream"


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
    routes: list[BaseRoute] = [route for each in ROUTES for route in _routes(page, each)]
    routes += [
        Route(f"{API}/s/{{session}}/file/{{kind}}", file_endpoint(page.answering), methods=["GET"]),
        Route(f"{API}/s/{{session}}/live", _stream(page), methods=["GET"]),
        Route("/code", _let_in(page), methods=["POST"]),
        Route("/{path:path}", StaticFiles(static_folder()).respond, methods=["GET"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, door=page.door)],
        exception_handlers={RankmemError: _refused, 404: _no_route, 405: _no_method, 500: _failed},
    )


def _routes(page: Page, route: SessionRoute | DatabaseRoute) -> list[Route]:
    """A route, and the same answer in the formats of other programs, below ``/export/{kind}``."""
    if isinstance(route, DatabaseRoute):
        answer, path, methods = _database_answer(page, route), route.path, [route.method]
    else:
        answer, path, methods = _session_answer(page, route), f"/s/{{session}}{route.path}", ["GET"]
    exported = export_endpoint(page.answering, answer)
    return [
        Route(f"{API}{path}", _endpoint(answer), methods=methods),
        Route(f"{API}/export/{{kind}}{path}", exported, methods=methods),
    ]


def _database_answer(page: Page, route: DatabaseRoute) -> Answer:
    async def answer(request: Request, pairs: Pairs) -> Body:
        return await page.answering.of_database(route, pairs)

    return answer


def _session_answer(page: Page, route: SessionRoute) -> Answer:
    async def answer(request: Request, pairs: Pairs) -> Body:
        return await page.answering.of_session(route, request.path_params["session"], pairs)

    return answer


def _endpoint(answer: Answer) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        pairs = await pairs_of(request)
        body = await unless_gone(request.receive, answer(request, pairs))
        return body_response(request, body, ARROW, "no-store")

    return endpoint


def _let_in(page: Page) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        given = await json_body(request)
        code, token = given.get("code"), given.get("token")
        client = request.client.host if request.client else ""
        if isinstance(code, str) and token is None:
            cookie = page.door.let_in(code, client)
        elif isinstance(token, str) and code is None:
            cookie = page.door.let_in_by_token(token, client)
        else:
            raise RankmemError(Code.INVALID, "the body holds no code", 'send {"code": "…"} as JSON')
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
                await unless_gone(receive, self._send(send))
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
            raise too_long(f"the address has more than {URL_BYTES_MAX:,} bytes", 414)
        # What arrived at once was not counted while it was incomplete.
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES_MAX:
            raise too_long(f"the headers have more than {HEAD_BYTES_MAX:,} bytes", 431)
        method = scope["method"]
        if method not in METHODS:
            raise _not_allowed(method)
        length = headers.get("content-length", "0")
        if int(length) > BODY_BYTES_MAX:  # h11 has seen that it is a number
            raise too_long(f"the body has more than {BODY_BYTES_MAX:,} bytes", 413)
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


def _not_allowed(method: str) -> RankmemError:
    return Refusal(405, Code.INVALID, f"{method[:20]} is not allowed here", "docs/page.md lists the routes")
