"""The page's HTTP: who gets in, which requests are refused with which status, and what is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from constructed import SESSION, RankLog, empty_database, store_logs
from page_server import PageClient, served_page
from rankmem_aggregator.page import door, live, requests
from rankmem_aggregator.page.config import bind
from rankmem_aggregator.page.headers import SECURITY_HEADERS
from rankmem_aggregator.page.serving import PageConfig

SECOND = 1_000_000_000
JSON = {"content-type": "application/json", "sec-fetch-site": "same-origin"}
SESSIONS = "/api/v1/sessions"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "job.duckdb"
    log = RankLog(ended=10 * SECOND)
    for i in range(20):
        log.alloc(f"b{i}", 1 << 20, at=i * SECOND // 4)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    return path


@pytest.fixture(scope="module")
def client(database: Path) -> Iterator[PageClient]:
    with served_page(database) as served:
        yield served


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "query.token"
    path.write_text("a-token-of-a-program-0001\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def own(database: Path, token_file: Path) -> Iterator[PageClient]:
    """A page of one test alone, with tokens."""
    with served_page(database, PageConfig(query_token_file=token_file)) as served:
        yield served


def raw(client: PageClient, data: bytes, *, limit_s: float = 20.0) -> bytes:
    """What the server answers to these bytes until it closes."""
    host, port = client.netloc.rsplit(":", 1)
    found = b""
    with (
        socket.create_connection((host, int(port)), timeout=limit_s) as sent,
        contextlib.suppress(ConnectionError),
    ):
        sent.sendall(data)
        while part := sent.recv(65536):
            found += part
    return found


def status_of(client: PageClient, method: str, path: str, **headers: str) -> int:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.request(method, path, b"", given).status


def test_a_browser_without_a_cookie_sees_the_page_and_no_answer(own: PageClient) -> None:
    own.cookie = ""
    assert status_of(own, "GET", "/") == 200
    reply = own.request("GET", SESSIONS)
    assert reply.status == 401
    assert reply.json()["code"] == "denied"
    assert "link" in reply.json()["hint"]
    assert "set-cookie" not in reply.headers


def test_a_code_is_good_once(own: PageClient) -> None:
    body = json.dumps({"code": own.server.door.new_code()}).encode()
    first = own.request("POST", "/code", body, JSON)
    assert first.status == 204
    assert own.request("POST", "/code", body, JSON).status == 403


def test_a_code_is_good_for_ten_minutes(own: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    code = own.server.door.new_code()
    now_s = time.monotonic()
    later = SimpleNamespace(monotonic=lambda: now_s + door.CODE_S + 1)
    monkeypatch.setattr(door, "time", later)
    assert own.request("POST", "/code", json.dumps({"code": code}).encode(), JSON).status == 403


def test_a_guesser_is_slowed_down_and_does_not_lock_out_who_has_the_link(own: PageClient) -> None:
    wrong = json.dumps({"code": "x" * 22}).encode()
    told = [own.request("POST", "/code", wrong, JSON).status for _ in range(door.TRIES_PER_MINUTE + 2)]
    assert told == [403] * door.TRIES_PER_MINUTE + [429, 429]
    own.let_in()


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(own: PageClient) -> None:
    body = json.dumps({"code": own.server.door.new_code()}).encode()
    name, _, rest = own.request("POST", "/code", body, JSON).headers["set-cookie"].partition("=")
    assert name == own.server.door.cookie_name
    attributes = {part.strip() for part in rest.split(";")[1:]}
    assert attributes == {"Path=/", f"Max-Age={12 * 3600}", "HttpOnly", "SameSite=Strict"}


@pytest.mark.parametrize("change", ["first", "last", "empty", "other key", "late"])
def test_a_cookie_that_was_not_given_does_not_let_in(
    own: PageClient, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, value = own.cookie.partition("=")
    changed = {
        "first": ("B" if value[0] == "A" else "A") + value[1:],
        "last": value[:-2] + ("A" if value[-2] == "B" else "B") + value[-1],
        "empty": "",
        "other key": value,
        "late": value,
    }[change]
    if change == "other key":
        own.server.door.key = bytes(32)
    if change == "late":
        now_s = time.time()
        monkeypatch.setattr(door, "time", SimpleNamespace(time=lambda: now_s + door.COOKIE_S + 1))
    own.cookie = f"{name}={changed}"
    assert own.request("GET", SESSIONS).status == 401


def test_cookies_of_other_pages_of_the_host_do_not_disturb(own: PageClient) -> None:
    own.cookie = f'state={{"a":1}}; odd; {own.cookie}; rankmem-1=x'
    assert own.request("GET", SESSIONS).status == 200


def test_a_token_lets_a_program_in_and_a_changed_file_counts_at_once(
    own: PageClient, token_file: Path
) -> None:
    own.cookie = ""
    assert status_of(own, "GET", SESSIONS, authorization="Bearer a-token-of-a-program-0001") == 200
    assert status_of(own, "GET", SESSIONS, authorization="Bearer a-token-of-a-program-0002") == 401
    token_file.write_text("a-token-of-a-program-0002\n")
    assert status_of(own, "GET", SESSIONS, authorization="Bearer a-token-of-a-program-0002") == 200
    assert status_of(own, "GET", SESSIONS, authorization="Bearer a-token-of-a-program-0001") == 401
    token_file.write_text("a-token-of-a-program-0001\n")


def test_a_wrong_token_is_not_made_good_by_a_cookie(own: PageClient) -> None:
    assert status_of(own, "GET", SESSIONS, authorization="Bearer nonsense-nonsense") == 401


def hosts(port: int) -> list[tuple[str, int]]:
    return [
        (f"127.0.0.1:{port}", 200),
        ("127.0.0.1", 200),
        (f"localhost:{port}", 200),
        ("LOCALHOST", 200),
        (f"[::1]:{port}", 200),
        ("[0:0:0:0:0:0:0:1]", 200),
        ("localhost:9999", 200),  # the end of a tunnel
        ("evil.example", 421),
        (f"evil.example:{port}", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1:80:80", 421),
        ("localhost:port", 421),
        ("user@localhost", 421),
        ("[::1", 421),
        ("[::1]x", 421),
        ("10.0.0.1", 421),
        ("", 421),
    ]


def test_only_the_names_of_the_page_reach_it(client: PageClient) -> None:
    port = int(client.netloc.rsplit(":", 1)[1])
    for host, status in hosts(port):
        for path in ("/", SESSIONS, "/page.css"):
            assert status_of(client, "GET", path, host=host) == status, (host, path)


def test_a_request_without_a_host_or_with_two_is_refused(client: PageClient) -> None:
    assert b" 421 " in raw(client, b"GET / HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    assert b" 400 " in raw(client, b"GET / HTTP/1.1\r\n\r\n").split(b"\r\n")[0]
    two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert b" 400 " in raw(client, two).split(b"\r\n")[0]
    absolute = b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert b" 421 " in raw(client, absolute).split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("method", "site", "origin", "status"),
    [
        ("GET", None, None, 200),
        ("GET", "same-origin", None, 200),
        ("GET", "none", None, 200),
        ("GET", "same-site", None, 403),
        ("GET", "cross-site", None, 403),
        ("GET", "nonsense", None, 403),
        ("GET", None, "http://evil.example", 403),
        ("GET", None, "null", 403),
        ("GET", "same-origin", "http://localhost:1", 403),
        ("GET", "same-origin", "own", 200),
        ("POST", "same-origin", None, 403),  # let in to be refused: the code is wrong
        ("POST", "same-origin", "own", 403),
        ("POST", None, None, 403),
        ("POST", "none", None, 403),
        ("POST", "cross-site", "http://evil.example", 403),
    ],
)
def test_another_sites_page_gets_nothing(
    own: PageClient, method: str, site: str | None, origin: str | None, status: int
) -> None:
    headers = {"content-type": "application/json"}
    if site is not None:
        headers["sec-fetch-site"] = site
    if origin is not None:
        headers["origin"] = own.server.address if origin == "own" else origin
    path = SESSIONS if method == "GET" else "/code"
    reply = own.request(method, path, b'{"code": "wrong"}' if method == "POST" else b"", headers)
    assert reply.status == status
    assert not any(name.startswith("access-control") for name in reply.headers)
    if method == "POST":
        is_foreign = site != "same-origin"
        assert ("another site" in reply.json()["message"]) is is_foreign


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_post_that_a_form_could_make_is_refused(own: PageClient, kind: str) -> None:
    headers = {"sec-fetch-site": "same-origin"} | ({"content-type": kind} if kind else {})
    assert own.request("POST", "/code", b'{"code": "x"}', headers).status == 415


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"[" * 100_000, b'{"code": 1}', b'"code"', b"\xff", b"{}"]
)
def test_a_body_that_is_no_code_is_refused(own: PageClient, body: bytes) -> None:
    assert own.request("POST", "/code", body, JSON).status == 400


@pytest.mark.parametrize("path", ["/", SESSIONS, f"/api/v1/s/{SESSION}/job", "/code", "/page.css", "/none"])
def test_methods_that_no_route_has_are_refused(client: PageClient, path: str) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        reply = client.request(method, path)
        assert reply.status == 405, method
        assert "allow" in reply.headers
        assert not any(name.startswith("access-control") for name in reply.headers)
    if path not in ("/code", "/none"):
        assert client.request("POST", path, b"{}", JSON).status == 405
        head = client.request("HEAD", path)
        assert head.status == 200
        assert head.body == b""


HOSTILE_PATHS = [
    "/../page.css",
    "/..%2fapp.py",
    "/%2e%2e/app.py",
    "/%2e%2e%2fapp.py",
    "/....//app.py",
    "/..\\app.py",
    "/%5c..%5capp.py",
    "//etc/passwd",
    "/static/../../app.py",
    "/vendor/",
    "/vendor/..%00/",
    "/page.css%00",
    "/page.css/",
    "/.hidden",
    "/%ff%fe",
    "/%",
    "/index.html/../../app.py",
    "/app.py",
    "/api",
    "/api/",
    "/api/v1",
    "/api/v1/",
    "/api/v1/nothing",
    "/api/v1/s",
    "/api/v1/s/",
    f"/api/v1/s/{SESSION}",
    f"/api/v1/s/{SESSION}/../../sessions",
    "/api/v1//sessions",
]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_a_path_that_leads_elsewhere_leads_nowhere(client: PageClient, path: str) -> None:
    head = f"Host: localhost\r\nCookie: {client.cookie}\r\nConnection: close\r\n\r\n"
    answer = raw(client, f"GET {path} HTTP/1.1\r\n{head}".encode())
    assert answer.split(b" ")[1] in (b"404", b"400"), answer[:200]
    assert b"Traceback" not in answer
    assert b"import" not in answer


@pytest.mark.parametrize(
    "session",
    ["none", "%00", "a%00b", "%ff", "%27%20OR%201=1%20--", "x" * 200, "%F0%9F%98%80", "..", "%2e%2e"],
)
def test_a_session_that_is_not_there_is_told_so(client: PageClient, session: str) -> None:
    for route in ("job", "live"):
        reply = client.request("GET", f"/api/v1/s/{session}/{route}")
        assert reply.status == 404, reply.body
        assert reply.json()["code"] == "not_found"


def test_long_addresses_heads_and_bodies_are_refused(own: PageClient) -> None:
    assert status_of(own, "GET", f"{SESSIONS}?limit={'1' * 8000}") == 400
    assert status_of(own, "GET", f"{SESSIONS}?limit={'1' * 8200}") == 414
    assert status_of(own, "GET", f"/{'%41' * 3000}") == 414
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"
    assert b" 431 " in raw(own, head).split(b"\r\n")[0]
    assert b" 431 " in raw(own, head[:18_000]).split(b"\r\n")[0]
    assert own.request("POST", "/code", b"x" * (requests.BODY_BYTES_MAX + 1), JSON).status == 413
    chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    chunked = (
        b"POST /code HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Sec-Fetch-Site: same-origin\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    ) + chunk * (requests.BODY_BYTES_MAX // 0x1000 + 1)
    assert b" 413 " in raw(own, chunked + b"0\r\n\r\n").split(b"\r\n")[0]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"nonsense\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\x00" * 100,
    ],
)
def test_what_is_no_http_is_refused_in_our_words(client: PageClient, nonsense: bytes) -> None:
    answer = raw(client, nonsense + b"\r\n\r\n")
    assert answer.split(b"\r\n")[0].split(b" ")[1] in (b"400", b"505")
    assert b'"code": "invalid"' in answer
    assert b"content-security-policy" in answer


def every_status(client: PageClient) -> Iterator[tuple[str, str, dict[str, str]]]:
    yield "GET", "/", {}
    yield "GET", "/page.css", {}
    yield "GET", SESSIONS, {}
    yield "GET", "/none", {}
    yield "GET", SESSIONS + "?limit=0", {}
    yield "GET", SESSIONS, {"host": "evil.example"}
    yield "GET", SESSIONS, {"authorization": "Bearer x"}
    yield "GET", SESSIONS, {"sec-fetch-site": "cross-site"}
    yield "PUT", SESSIONS, {}
    yield "POST", "/code", {}


def test_a_body_is_sent_without_waiting_for_its_heads_acknowledgement() -> None:
    async def switched_off() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ours = writer.get_extra_info("socket")
            seen.set_result(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(accepted, sock=bind("127.0.0.1:0")) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            found = await asyncio.wait_for(seen, 30)
            writer.close()
        return found

    assert asyncio.run(switched_off()) == 1


def test_every_response_has_the_headers(client: PageClient) -> None:
    for method, path, headers in every_status(client):
        reply = client.request(method, path, b"", headers)
        for name, value in SECURITY_HEADERS:
            assert reply.headers[name] == value, (method, path)
        if path.startswith("/api"):
            assert reply.headers["cache-control"] == "no-store"
        assert "server" not in reply.headers


def test_an_answer_that_is_known_is_not_sent_again(client: PageClient) -> None:
    first = client.request("GET", f"/api/v1/s/{SESSION}/job")
    again = client.request("GET", f"/api/v1/s/{SESSION}/job", b"", {"if-none-match": first.headers["etag"]})
    assert again.status == 304
    assert again.body == b""


def test_a_thousand_idle_and_slow_connections_keep_nobody_out(own: PageClient) -> None:
    host, port = own.netloc.rsplit(":", 1)
    opened: list[socket.socket] = []
    try:
        for number in range(1000):
            slow = socket.create_connection((host, int(port)), timeout=10)
            opened.append(slow)
            with contextlib.suppress(OSError):
                if number % 3 == 1:
                    slow.sendall(b"GET / HTTP/1.1\r\nHost: localh")
                elif number % 3 == 2:
                    slow.sendall(b"POST /code HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
            if number % 50 == 0:
                assert own.request("GET", SESSIONS).status == 200
        for _ in range(20):
            began_s = time.monotonic()
            assert own.request("GET", SESSIONS).status == 200
            assert time.monotonic() - began_s < 5
        assert len(own.server.connections) <= 512
    finally:
        for slow in opened:
            slow.close()


def test_a_request_that_never_arrives_is_cut(own: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankmem_aggregator.page.connections.REQUEST_S", 0.3)
    host, port = own.netloc.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as slow:
        began_s = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                slow.sendall(b"G")
                time.sleep(0.02)  # a byte now and then
                slow.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(1):
                        break
        assert time.monotonic() - began_s < 3.5


class Stream:
    """A stream of events, read line by line."""

    def __init__(self, client: PageClient, session: str = SESSION, **headers: str) -> None:
        self.connection = http.client.HTTPConnection(client.netloc, timeout=30)
        given = {"cookie": client.cookie} | {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request("GET", f"/api/v1/s/{session}/live", None, given)
        self.response = self.connection.getresponse()

    def messages(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        name = mark = ""
        while line := self.response.readline():
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "id":
                mark = value
            elif key == "data":
                yield name, json.loads(value), mark
                mark = ""

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def test_a_stream_tells_how_far_the_session_is_and_that_it_ended(own: PageClient) -> None:
    stream = Stream(own)
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    messages = stream.messages()
    name, told, mark = next(messages)
    assert name == "progress"
    assert mark == told["watermark"]
    assert told["events"] == 20
    assert told["ranks"] == 1
    assert told["running"] == 0
    assert told["ended"] is True
    assert next(messages)[0] == "end"
    stream.close()


def test_a_browser_has_so_many_streams_and_the_place_of_one_that_went_is_free(own: PageClient) -> None:
    streams = [Stream(own) for _ in range(live.STREAMS_A_CALLER)]
    assert {stream.response.status for stream in streams} == {200}
    over = Stream(own)
    assert over.response.status == 429
    over.close()
    first = own.cookie
    own.let_in()  # another browser
    other = Stream(own)
    assert other.response.status == 200
    own.cookie = first
    assert own.request("GET", SESSIONS).status == 200
    for stream in [*streams, other]:
        stream.close()
    ends_s = time.monotonic() + 10
    while True:
        again = Stream(own)
        again.close()
        if again.response.status == 200:
            break
        assert time.monotonic() < ends_s


def test_a_statement_ends_when_its_browser_goes(own: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankmem_aggregator.query.local import LocalQueries

    begun, ended = threading.Event(), threading.Event()
    asked = LocalQueries.sql

    def slow(self: LocalQueries, text: str, parameters: Any = None) -> Any:
        if "session_overview" not in text or "LIMIT" not in text:
            return asked(self, text, parameters)
        begun.set()
        try:
            return asked(self, "SELECT count(*) FROM range(1000000000000) WHERE range % 7 = 5")
        finally:
            ended.set()

    monkeypatch.setattr(LocalQueries, "sql", slow)
    host, port = own.netloc.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as browser:
        browser.sendall(
            f"GET {SESSIONS} HTTP/1.1\r\nHost: localhost\r\nCookie: {own.cookie}\r\n\r\n".encode()
        )
        assert begun.wait(20)
        assert not ended.is_set()
    assert ended.wait(5), "the statement went on"


def test_fifty_who_ask_the_same_cost_one(own: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankmem_aggregator.query.local import LocalQueries

    texts: list[str] = []
    asked = LocalQueries.sql

    def counted(self: LocalQueries, text: str, parameters: Any = None) -> Any:
        texts.append(text)
        return asked(self, text, parameters)

    monkeypatch.setattr(LocalQueries, "sql", counted)
    path = f"/api/v1/s/{SESSION}/heat?from=0&to=9000000000&bins=77"
    replies: list[bytes] = []
    cookies = [own.cookie]
    for _ in range(9):
        own.let_in()
        cookies.append(own.cookie)

    def view(number: int) -> None:
        headers = {"cookie": cookies[number % len(cookies)]}
        connection = http.client.HTTPConnection(own.netloc, timeout=60)
        connection.request("GET", path, None, headers)
        replies.append(connection.getresponse().read())
        connection.close()

    threads = [threading.Thread(target=view, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 50
    assert len(set(replies)) == 1
    heats = [text for text in texts if "num_bins" in text]
    assert len(heats) == 1
    assert len(texts) <= 12, texts


def test_a_defect_is_told_without_its_stack(own: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankmem_aggregator.query.local import LocalQueries

    def broken(self: LocalQueries, text: str, parameters: Any = None) -> Any:
        raise KeyError("a secret of the code")

    monkeypatch.setattr(LocalQueries, "sql", broken)
    reply = own.request("GET", SESSIONS)
    assert reply.status == 500
    assert set(reply.json()) == {"code", "message", "hint"}
    assert b"secret" not in reply.body
    assert b"Traceback" not in reply.body


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("invalid", 400), ("not_found", 404), ("conflict", 409), ("unavailable", 503), ("exhausted", 429),
        ("denied", 403), ("unsupported", 501), ("internal", 500),
    ],
)  # fmt: skip
def test_each_code_has_its_status(
    own: PageClient, code: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankmem_aggregator.query.local import LocalQueries
    from rankmem_protos.errors import Code, RankmemError

    def failing(self: LocalQueries, text: str, parameters: Any = None) -> Any:
        raise RankmemError(Code(code), "what happened", "what to do")

    with monkeypatch.context() as patched:
        patched.setattr(LocalQueries, "sql", failing)
        reply = own.request("GET", SESSIONS)
    assert reply.status == status
    assert reply.json() == {"code": code, "message": "what happened", "hint": "what to do"}
    assert own.request("GET", SESSIONS).status == 200, "the next question is not disturbed"


def test_a_person_without_a_link_shows_a_token(own: PageClient) -> None:
    own.cookie = ""
    for token, status in (("a-token-of-a-program-0001", 204), ("a-token-of-a-program-0007", 403)):
        reply = own.request("POST", "/code", json.dumps({"token": token}).encode(), JSON)
        assert reply.status == status
        if status == 204:
            own.cookie = reply.headers["set-cookie"].partition(";")[0]
    assert own.request("GET", SESSIONS).status == 200
    both = json.dumps({"token": "a-token-of-a-program-0001", "code": own.server.door.new_code()}).encode()
    assert own.request("POST", "/code", both, JSON).status == 400
    wrong = json.dumps({"token": "x" * 20}).encode()
    told = [own.request("POST", "/code", wrong, JSON).status for _ in range(door.TRIES_PER_MINUTE)]
    assert told[-1] == 429
