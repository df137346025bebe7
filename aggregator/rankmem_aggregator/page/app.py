"""The page over HTTP: routes to answers, and what every request passes before it reaches one.

Stage: page, in uvicorn's process; answers run in threads, the rest in its event loop. In the order of a
request: host, headers, door, errors, route. An answer is an Arrow IPC stream; a refusal is JSON: code,
message, hint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import pyarrow as pa
from anyio import to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.cache import AnswerCache
from rankmem_aggregator.page.door import Door
from rankmem_aggregator.page.exported import FILE_S, FILES, FORMATS, FileAsked, file_of
from rankmem_aggregator.page.headers import SECURITY_HEADERS
from rankmem_aggregator.page.parameters import read_parameters
from rankmem_aggregator.page.pool import Pool, Ticket
from rankmem_aggregator.page.reading import PageSession, Reading
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import SessionId
from rankmem_aggregator.sql import page_text
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

ARROW: Final = "application/vnd.apache.arrow.stream"
API: Final = "/api/v1"
ANSWER_BYTES_MAX: Final = 16 << 20
STATE_FRESH_S: Final = 1.0
"""A running session's watermark is asked for at most so often: stored rows are as old as that anyway."""
GZIP_LEAST_BYTES: Final = 2000
URL_BYTES_MAX: Final = 8 << 10
BODY_BYTES_MAX: Final = 256 << 10
"""Of a statement, whose quotes and line ends JSON writes as two characters."""

Compute = Callable[[Request, Ticket], bytes]
"""The body of an answer, in a thread."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the routes share."""

    pool: Pool
    door: Door
    cache: AnswerCache = field(default_factory=AnswerCache)
    states: SessionStates = field(default_factory=lambda: SessionStates())


def page_app(page: Page) -> Starlette:
    """The application."""
    routes: list[BaseRoute] = [route for each in ROUTES for route in _routes(page, each)]
    routes += [
        Route(f"{API}/s/{{session}}/file/{{kind}}", _file(page), methods=["GET"]),
        Route("/code", _let_in(page), methods=["POST"]),
        Mount("/", StaticFiles(directory=static_folder(), html=True)),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(_Guard, door=page.door),
            Middleware(GZipMiddleware, minimum_size=GZIP_LEAST_BYTES, compresslevel=1),
        ],
        exception_handlers={RankmemError: _refused, 404: _no_route, 405: _no_method, 500: _failed},
    )


def static_folder() -> Path:
    """The folder of the page's own files."""
    return Path(str(resources.files("rankmem_aggregator.page") / "static"))


def arrow_bytes(answer: pa.Table) -> bytes:
    """An answer as an Arrow IPC stream.

    Raises:
        RankmemError: EXHAUSTED where it is larger than an answer may be.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, answer.schema) as writer:
        writer.write_table(answer.combine_chunks())
    body: bytes = sink.getvalue().to_pybytes()
    if len(body) > ANSWER_BYTES_MAX:
        raise RankmemError(
            Code.EXHAUSTED,
            f"the answer has {len(body):,} bytes, more than {ANSWER_BYTES_MAX:,}",
            "choose a shorter range or fewer rows; rankmem sql --out FILE has no limit",
        )
    return body


class SessionStates:
    """Sessions' starts and watermarks, looked up at most once a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, PageSession]] = {}

    def of(self, queries: Queries, session_id: str) -> PageSession:
        """The state of a session.

        Raises:
            RankmemError: NOT_FOUND.
        """
        now_s = time.monotonic()
        with self._lock:
            known = self._known.get(session_id)
        if known is not None and now_s - known[0] < STATE_FRESH_S:
            return known[1]
        rows = queries.sql(page_text("session_state"), {"session": session_id}).to_pylist()
        if not rows:
            with self._lock:
                self._known.pop(session_id, None)
            raise RankmemError(
                Code.NOT_FOUND, f"no session {session_id!r} in {queries.target}", "choose one of the list"
            )
        state = PageSession(**{**rows[0], "session_id": SessionId(rows[0]["session_id"])})
        with self._lock:
            self._known[session_id] = (now_s, state)
        return state


def _routes(page: Page, route: SessionRoute | DatabaseRoute) -> list[Route]:
    """A route, and the same answer in the formats of other programs, below ``/export/{kind}``."""
    if isinstance(route, DatabaseRoute):
        answer, path = _database_answer(page, route), route.path
    else:
        answer, path = _session_answer(page, route), f"/s/{{session}}{route.path}"
    methods = [route.method if isinstance(route, DatabaseRoute) else "GET"]
    return [
        Route(f"{API}{path}", _endpoint(answer), methods=methods),
        Route(f"{API}/export/{{kind}}{path}", _exported(answer), methods=methods),
    ]


def _database_answer(page: Page, route: DatabaseRoute) -> Compute:
    def compute(request: Request, ticket: Ticket) -> bytes:
        asked = read_parameters(route.parameters, request.state.pairs)
        with page.pool.reader(ticket, limit_s=route.limit_s) as queries:
            return arrow_bytes(route.answer(queries, asked))

    return compute


def _session_answer(page: Page, route: SessionRoute) -> Compute:
    def compute(request: Request, ticket: Ticket) -> bytes:
        pairs = request.state.pairs
        asked = read_parameters(route.parameters, pairs)
        session_id = request.path_params["session"]
        with page.pool.reader(ticket, limit_s=route.limit_s) as queries:
            state = page.states.of(queries, session_id)
            others = {each: page.states.of(queries, each) for each in route.others(asked)}
            seen = [state.watermark, *(each.watermark for each in others.values())]
            key = (state.session_id, *seen, route.path, *(f"{k}={v}" for k, v in sorted(pairs)))

            def fresh() -> bytes:
                reading = Reading(queries=queries, session=state, others=others)
                return arrow_bytes(route.answer(reading, asked))

            return page.cache.get(key, fresh)

    return compute


def _endpoint(compute: Compute) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        request.state.pairs = await pairs_of(request)
        body = await in_thread(request, compute)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {"etag": tag, "cache-control": "no-store"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=ARROW, headers=headers)

    return endpoint


def _exported(compute: Compute) -> Callable[[Request], Any]:
    def written(request: Request, ticket: Ticket) -> bytes:
        body = compute(request, ticket)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            return FORMATS[request.path_params["kind"]].write(reader.read_all())

    async def endpoint(request: Request) -> Response:
        found = FORMATS.get(request.path_params["kind"])
        if found is None:
            raise _no_format(request.path_params["kind"], FORMATS)
        request.state.pairs = await pairs_of(request)
        return _attached(await in_thread(request, written), found.end, found.media_type)

    return endpoint


def _file(page: Page) -> Callable[[Request], Any]:
    def made(request: Request, ticket: Ticket) -> bytes:
        asked = read_parameters(FileAsked, request.query_params.multi_items())
        with page.pool.reader(ticket, limit_s=FILE_S) as queries:
            state = page.states.of(queries, request.path_params["session"])
            reading = Reading(queries=queries, session=state)
            return file_of(reading, request.path_params["kind"], asked)

    async def endpoint(request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in FILES:
            raise _no_format(kind, FILES)
        _, end, media_type = FILES[kind]
        return _attached(await in_thread(request, made), end, media_type)

    return endpoint


def _attached(body: bytes, end: str, media_type: str) -> Response:
    """A response that a browser saves and never shows."""
    disposition = f'attachment; filename="rankmem.{end}"'
    return Response(
        body,
        media_type=media_type,
        headers={"content-disposition": disposition, "cache-control": "no-store"},
    )


def _no_format(kind: str, known: Iterable[str]) -> RankmemError:
    return RankmemError(
        Code.NOT_FOUND, f"there is no export {kind[:60]!r} here", f"one of {', '.join(known)}"
    )


async def pairs_of(request: Request) -> list[tuple[str, str]]:
    """The parameters of a request: of its address, or for POST of its body, a JSON object.

    Raises:
        RankmemError: INVALID for another body, EXHAUSTED for one that is too long.
    """
    pairs = request.query_params.multi_items()
    if request.method != "POST":
        return pairs
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise RankmemError(
                Code.EXHAUSTED, f"the body has more than {BODY_BYTES_MAX:,} bytes", "send a shorter one"
            )
    try:
        given = json.loads(body)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise ValueError
        return [*pairs, *((name, _text_of(value)) for name, value in given.items())]
    except (ValueError, AttributeError, RecursionError):
        raise RankmemError(
            Code.INVALID, "the body is not a JSON object of texts and numbers", 'send {"sql": "…"} as JSON'
        ) from None


def _text_of(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError
    return str(value)


async def in_thread(request: Request, compute: Compute) -> bytes:
    """Runs an answer in a thread; its question is interrupted when the browser goes."""
    ticket = Ticket()
    result: list[bytes] = []
    failure: list[BaseException] = []

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        ticket.cancel("the browser has gone")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gone)
        try:
            result.append(await to_thread.run_sync(compute, request, ticket))
        except RankmemError as exc:  # a task group would wrap it
            failure.append(exc)
        tasks.cancel_scope.cancel()
    if failure:
        raise failure[0]
    return result[0]


def _let_in(page: Page) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            asked = json.loads(await request.body())
            code = asked["code"] if isinstance(asked, dict) else None
        except (ValueError, KeyError, RecursionError):
            code = None
        if not isinstance(code, str):
            raise RankmemError(Code.INVALID, "the body holds no code", 'send {"code": "…"} as JSON')
        client = request.client.host if request.client else ""
        cookie = page.door.let_in(code, client)
        return Response(status_code=204, headers={"set-cookie": page.door.set_cookie(cookie)})

    return endpoint


class _Guard:
    """Host, headers and door, for every request."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_encoded(SECURITY_HEADERS)]
            await send(message)

        try:
            self._check(scope)
        except RankmemError as exc:
            status = 421 if "reached by the name" in exc.message else _status(exc, scope["path"])
            await _json_of(exc, status)(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)

    def _check(self, scope: Scope) -> None:
        headers = dict(Headers(scope=scope).items())
        self._door.check_host(headers)
        if len(scope["path"]) + len(scope["query_string"]) > URL_BYTES_MAX:
            raise RankmemError(Code.INVALID, f"the URL has more than {URL_BYTES_MAX:,} bytes", "ask for less")
        method: Literal["GET", "POST"] | str = scope["method"]
        if scope["path"].startswith(API) or method != "GET":
            self._door.check_origin(headers, method)
        if scope["path"].startswith(API):
            self._door.check_caller(headers)


def _status(error: RankmemError, path: str) -> int:
    return 401 if error.code is Code.DENIED and "let in" in error.message else STATUS_OF[error.code]


def _json_of(error: RankmemError, status: int) -> JSONResponse:
    told = {"code": error.code.value, "message": error.message, "hint": error.hint}
    return JSONResponse(told, status_code=status, headers={"cache-control": "no-store"})


async def _refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RankmemError)
    return _json_of(exc, _status(exc, request.url.path))


async def _no_route(request: Request, exc: Exception) -> Response:
    path = request.url.path[:80]
    return _json_of(
        RankmemError(Code.NOT_FOUND, f"nothing is at {path}", "docs/page.md lists the routes"), 404
    )


async def _no_method(request: Request, exc: Exception) -> Response:
    error = RankmemError(
        Code.INVALID, f"{request.method} is not allowed here", "docs/page.md lists the routes"
    )
    return _json_of(error, 405)


async def _failed(request: Request, exc: Exception) -> Response:
    logger.error("no answer for %s", request.url.path, exc_info=exc)
    return _json_of(RankmemError(Code.INTERNAL, "a defect of rankmem: see the page's log", ""), 500)


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]
