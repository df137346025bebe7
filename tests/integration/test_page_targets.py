"""What the page reads from may be gone, older, slow, full or back again: the panel that asked is told so."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import shutil
import signal
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from constructed import SESSION, RankLog, empty_database, store_logs
from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.page import pool as pool_module
from rankmem_aggregator.page.pool import LONG_MAX, QUESTION_S, Pool, Ticket
from rankmem_aggregator.page.serving import PageConfig, PageServer
from rankmem_aggregator.query.local import LocalQueries
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.server.certs import make
from rankmem_aggregator.supervision.supervisor import Supervisor
from rankmem_protos.errors import Code, RankmemError
from waiting import until

SESSIONS = "/api/v1/sessions"
LONG = "SELECT count(*) FROM range(1000000000000) WHERE range % 7 = 5"


def stored(path: Path) -> Path:
    log = RankLog(ended=10**10)
    log.alloc("a", 1 << 20, at=1)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
    return path


def config_of(path: Path, **options: Any) -> AggregatorConfig:
    given = {"database_path": path, "listen": "127.0.0.1:0", "threads": 1} | options
    return AggregatorConfig.from_environment({}, **given)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(config_of(stored(tmp_path / "a.duckdb"), queries_max=2)) as supervisor:
        yield supervisor


def test_an_aggregator_that_is_killed_comes_back_to_the_page(kept: Supervisor) -> None:
    with served_page(kept.address) as client:
        assert client.request("GET", SESSIONS).status == 200
        before = kept.num_restarts
        os.kill(kept.pid, signal.SIGKILL)
        statuses: list[int] = []

        def is_back() -> bool:
            statuses.append(client.request("GET", SESSIONS).status)
            return kept.num_restarts > before and statuses[-1] == 200

        until("it answers again", is_back)
        assert set(statuses) <= {200, 503}
        assert client.ask(f"s/{SESSION}/job").num_rows == 1


def test_an_aggregator_that_is_gone_is_told_with_what_to_do(tmp_path: Path) -> None:
    with Supervisor(config_of(stored(tmp_path / "a.duckdb"))) as supervisor:
        served = served_page(supervisor.address)
        client = served.__enter__()
    try:
        reply = client.request("GET", SESSIONS)
        assert reply.status == 503
        assert supervisor.address in reply.json()["message"]
        assert "rankmem serve" in reply.json()["hint"]
    finally:
        served.__exit__(None, None, None)


def test_a_file_whose_aggregator_ends_is_read_itself(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.duckdb")
    with Supervisor(config_of(path)):
        served = served_page(path)
        client = served.__enter__()
        assert client.request("GET", SESSIONS).status == 200
    try:
        statuses = [client.request("GET", SESSIONS).status for _ in range(3)]
        assert statuses[-1] == 200, statuses
    finally:
        served.__exit__(None, None, None)


def test_an_aggregator_that_is_full_is_told_and_the_page_serves_on(kept: Supervisor) -> None:
    with served_page(kept.address) as client:
        readers = [RemoteQueries(kept.address) for _ in range(2)]
        enough = threading.Event()
        threads = [threading.Thread(target=_asks, args=(each, LONG, enough)) for each in readers]
        for thread in threads:
            thread.start()
        until("it is full", lambda: client.request("GET", SESSIONS).status == 429)
        reply = client.request("GET", SESSIONS)
        assert reply.json()["code"] == "exhausted"
        assert reply.json()["hint"]
        assert client.request("GET", "/").status == 200
        enough.set()
        for each in readers:
            each.interrupt()
        for thread in threads:
            thread.join(30)
        until("there is room", lambda: client.request("GET", SESSIONS).status == 200)
        for each in readers:
            each.close()


def _asks(queries: RemoteQueries, text: str, enough: threading.Event) -> None:
    """Asks again where it is refused: the page's own question may have had the place."""
    while not enough.wait(0.05):
        with contextlib.suppress(RankmemError):
            queries.sql(text)


def test_an_aggregator_that_is_stopped_does_not_hold_the_page(
    kept: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankmem_aggregator.page.answers import sessions

    monkeypatch.setattr("rankmem_aggregator.page.answering.STATE_FRESH_S", 0.0)
    route = sessions.ROUTES[0]
    object.__setattr__(route, "limit_s", 1.0)
    try:
        with served_page(kept.address) as client:
            os.kill(kept.pid, signal.SIGSTOP)
            try:
                began_s = time.monotonic()
                reply = client.request("GET", SESSIONS)
                assert reply.status == 429
                assert "1 s" in reply.json()["message"]
                assert time.monotonic() - began_s < 6
                assert client.request("GET", "/").status == 200
            finally:
                os.kill(kept.pid, signal.SIGCONT)
            until("it answers again", lambda: client.request("GET", SESSIONS).status == 200)
    finally:
        object.__setattr__(route, "limit_s", 10.0)


@pytest.mark.parametrize("content", [b"", b"this is a text", b"\0" * 5000])
def test_a_file_that_is_no_database_is_refused_at_the_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.duckdb"
    path.write_bytes(content)
    with pytest.raises(RankmemError) as refused:
        PageServer(PageConfig(), lambda: connect(path))
    assert refused.value.code is Code.INVALID
    assert refused.value.hint


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(RankmemError) as refused:
        PageServer(PageConfig(), lambda: connect(tmp_path / "none.duckdb"))
    assert refused.value.code is Code.NOT_FOUND


def test_an_older_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = stored(tmp_path / "older.duckdb")
    with duckdb.connect(str(path)) as connection:
        names = [row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        for name in names:
            if name in ("memory_level", "group_bucket", "group_total", "summary_progress", "kernel_launch"):
                connection.execute(f"DROP TABLE {name}")
    with served_page(path) as client:
        assert client.request("GET", SESSIONS).status == 200
        assert client.ask(f"s/{SESSION}/job").num_rows == 1
        assert client.ask(f"s/{SESSION}/heat", from_=0, to=10**9).num_rows >= 0


# -- the readers -------------------------------------------------------------------------------------


def test_an_interrupt_between_statements_of_an_aggregators_reader_is_not_lost(kept: Supervisor) -> None:
    with RemoteQueries(kept.address) as queries:
        queries.sql("SELECT 1")
        queries.interrupt()
        with pytest.raises(RankmemError):
            queries.sql("SELECT 2")
        queries.allow()
        assert queries.sql("SELECT 3 AS three").to_pylist() == [{"three": 3}]


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.1])
def test_a_statement_at_an_aggregator_is_ended_whenever_the_interrupt_comes(
    kept: Supervisor, after_s: float
) -> None:
    with RemoteQueries(kept.address) as queries:
        timer = threading.Timer(after_s, queries.interrupt)
        timer.start()
        began_s = time.monotonic()
        with pytest.raises(RankmemError):
            queries.sql(LONG)
        assert time.monotonic() - began_s < 20
        timer.join()


def test_a_cancelled_request_does_not_hit_the_next_one_of_its_reader(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.duckdb")
    pool = Pool(lambda: LocalQueries(path), size=1)
    stop = threading.Event()
    tickets: list[Ticket] = []

    def cancel() -> None:
        while not stop.wait(1e-4):  # without a pause the reader seldom gets the interpreter
            for ticket in tickets[-3:]:
                ticket.cancel("the browser has gone")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        for number in range(120):
            given_up = Ticket()
            tickets.append(given_up)
            with contextlib.suppress(RankmemError), pool.reader(given_up) as queries:
                queries.sql("SELECT 1")
                queries.sql("SELECT 2")
            # Not cancelled: all of its statements run, whatever happened to the one before.
            with pool.reader(Ticket()) as queries:
                for value in range(3):
                    found = queries.sql("SELECT $v AS v", {"v": value + number}).to_pylist()
                    assert found == [{"v": value + number}]
    finally:
        stop.set()
        canceller.join()
        pool.close()


def test_a_request_that_takes_too_long_is_ended_and_its_reader_serves_on(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.duckdb")
    pool = Pool(lambda: LocalQueries(path), size=1)
    with pytest.raises(RankmemError, match=r"longer than 0\.2 s") as ended:  # noqa: SIM117
        with pool.reader(Ticket(), limit_s=0.2) as queries:
            queries.sql(LONG)
    assert ended.value.code is Code.EXHAUSTED
    with pool.reader(Ticket()) as queries:
        assert queries.sql("SELECT 1 AS one").to_pylist() == [{"one": 1}]
    pool.close()


def test_a_long_question_waits_as_long_as_one_before_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "WAIT_S", 0.2)
    path = stored(tmp_path / "a.duckdb")
    pool = Pool(lambda: LocalQueries(path), size=4)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def third() -> None:
        try:
            with pool.reader(Ticket(), limit_s=QUESTION_S + 20) as queries:
                answers.put(queries.sql("SELECT 1 AS one").to_pylist())
        except RankmemError as exc:
            answers.put(exc)

    with contextlib.ExitStack() as before:
        for _ in range(LONG_MAX):
            before.enter_context(pool.reader(Ticket(), limit_s=QUESTION_S + 20))
        waiting = threading.Thread(target=third)
        waiting.start()
        with pytest.raises(queue.Empty):
            answers.get(timeout=0.5)
    assert answers.get(timeout=30) == [{"one": 1}]
    waiting.join()
    pool.close()


# -- TLS and other addresses -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make(folder)
    return folder


def test_with_tls_the_cookie_is_bound_to_it(tmp_path: Path, certificates: Path) -> None:
    path = stored(tmp_path / "a.duckdb")
    config = PageConfig(
        listen="127.0.0.1:0",
        tls_cert=certificates / "aggregator.pem",
        tls_key=certificates / "aggregator.key",
        query_token_file=certificates / "query.token",
    )
    server = PageServer(config, lambda: connect(path))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert server.address.startswith("https://")
        cookie = server.door.set_cookie("x")
        assert cookie.startswith(f"__Host-rankmem-{server.door.port}=")
        assert cookie.endswith("; Secure")
        assert "Path=/;" in cookie
        assert "Domain" not in cookie
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        token = (certificates / "query.token").read_text().split("\n")[0]
        shown = {"Authorization": f"Bearer {token}"}
        asked = urllib.request.Request(server.address + SESSIONS, headers=shown)
        with urllib.request.urlopen(asked, context=context, timeout=20) as response:
            assert response.status == 200
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.address + SESSIONS, context=context, timeout=20)
        assert refused.value.code == 401
        refused.value.close()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with urllib.request.urlopen(asked, context=context, timeout=20) as response:
            assert response.status == 200
    finally:
        server.stop()
        thread.join(20)


def _shown(server: PageServer, name: str | None) -> bytes:
    """The certificate that a handshake shows, in DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", server.door.port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        found = secured.getpeercert(binary_form=True)
        assert found
        return found


def test_a_renewed_certificate_is_shown_without_a_restart(
    tmp_path: Path, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the client names the server or not; a file that cannot be used changes nothing."""
    path, mine, other = stored(tmp_path / "a.duckdb"), tmp_path / "mine", tmp_path / "other"
    shutil.copytree(certificates, mine)
    make(other)
    config = PageConfig(
        listen="127.0.0.1:0",
        tls_cert=mine / "aggregator.pem",
        tls_key=mine / "aggregator.key",
        query_token_file=mine / "query.token",
    )
    first, second = (_der(folder / "aggregator.pem") for folder in (certificates, other))
    server = PageServer(config, lambda: connect(path))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert (_shown(server, "localhost"), _shown(server, None)) == (first, first)
        (mine / "aggregator.pem").write_bytes((other / "aggregator.pem").read_bytes())
        assert _shown(server, "localhost") == first, "the key is still the old one"
        assert "the previous certificate stays in use" in caplog.text
        (mine / "aggregator.key").write_bytes((other / "aggregator.key").read_bytes())
        assert (_shown(server, None), _shown(server, "localhost")) == (second, second)
        (mine / "aggregator.key").unlink()
        assert _shown(server, "localhost") == second
        context = ssl.create_default_context(cafile=str(other / "ca.pem"))
        token = (certificates / "query.token").read_text().split("\n")[0]
        shown = {"Authorization": f"Bearer {token}"}
        asked = urllib.request.Request(server.address + SESSIONS, headers=shown)
        with urllib.request.urlopen(asked, context=context, timeout=20) as response:
            assert response.status == 200
    finally:
        server.stop()
        thread.join(20)


def _der(path: Path) -> bytes:
    """The first certificate of a PEM file."""
    text = path.read_text()
    end = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(text[: text.index(end) + len(end)])


def test_the_page_is_reached_by_ipv6(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.duckdb")
    try:
        server = PageServer(PageConfig(listen="[::1]:0"), lambda: connect(path))
    except RankmemError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    assert server.address.startswith("http://[::1]:")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        with urllib.request.urlopen(server.address, timeout=20) as response:
            assert response.status == 200
        assert PageClient(server).netloc.startswith("[::1]:")
    finally:
        server.stop()
        thread.join(20)


def test_at_every_address_it_is_reached_by_ipv4_and_ipv6_under_their_own_names(
    tmp_path: Path, certificates: Path
) -> None:
    """A caller by IPv4 comes to an IPv6 socket as ::ffff:127.0.0.1."""
    path = stored(tmp_path / "a.duckdb")
    config = PageConfig(
        listen="[::]:0",
        names=("Node-7.example", "[2001:DB8:0::7]"),
        tls_cert=certificates / "aggregator.pem",
        tls_key=certificates / "aggregator.key",
        query_token_file=certificates / "query.token",
    )
    try:
        server = PageServer(config, lambda: connect(path))
    except RankmemError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    assert server.address == f"https://[::1]:{server.door.port}"
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    port = server.door.port

    def status(reached: str, host: str) -> int:
        connection = http.client.HTTPSConnection(reached, port, context=context, timeout=20)
        try:
            connection.request("GET", "/", headers={"Host": host})
            return connection.getresponse().status
        finally:
            connection.close()

    try:
        for reached in ("127.0.0.1", "::1"):
            for host in (
                "127.0.0.1",
                "localhost",
                "[::1]",
                "[::ffff:127.0.0.1]",
                "node-7.example",
                "[2001:db8::7]",
            ):
                assert status(reached, host) == status(reached, f"{host}:{port}") == 200, (reached, host)
            for host in ("10.1.2.3", "[::ffff:10.1.2.3]", "[2001:db8::8]", "evil.example"):
                assert status(reached, host) == 421, (reached, host)
        # As a caller by IPv4 from another host comes to it; by its own address, and by no other.
        server.door.check_host({"host": f"10.1.2.3:{port}"}, "::ffff:10.1.2.3")
        server.door.check_host({"host": "[fe80::7]"}, "fe80::7%eth0")
        with pytest.raises(RankmemError, match=r"not reached by the name '10\.1\.2\.4'"):
            server.door.check_host({"host": "10.1.2.4"}, "::ffff:10.1.2.3")
    finally:
        server.stop()
        thread.join(20)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.1.2.3:80", "example.org:80"])
def test_off_loopback_it_needs_tls_and_tokens(listen: str, certificates: Path) -> None:
    for given in (
        {},
        {"tls_cert": certificates / "aggregator.pem", "tls_key": certificates / "aggregator.key"},
        {"query_token_file": certificates / "query.token"},
    ):
        with pytest.raises(RankmemError) as refused:
            PageConfig(listen=listen, **given).check()
        assert refused.value.code is Code.INVALID
        assert "TLS and tokens" in refused.value.message


def test_no_secret_is_in_a_log_or_in_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path / "a.duckdb")
    token = tmp_path / "token"
    token.write_text("a-token-of-a-program-0001\n")
    token.chmod(0o600)
    caplog.set_level("DEBUG")
    with served_page(path, PageConfig(query_token_file=token)) as client:
        code = client.server.door.new_code()
        bodies = [
            client.request("GET", SESSIONS).body,
            client.request("GET", f"/api/v1/s/{code}/job").body,
            client.request("GET", SESSIONS, b"", {"authorization": "Bearer a-token-of-a-program-0001"}).body,
            client.request("GET", SESSIONS, b"", {"authorization": "Bearer a-token-of-a-program-0009"}).body,
            client.request("GET", "/none", b"", {"cookie": client.cookie}).body,
        ]
        cookie = client.cookie.partition("=")[2]
        key = client.server.door.key.hex()
        said = "".join(capfd.readouterr()) + caplog.text
        for secret in (cookie, key, "a-token-of-a-program"):
            assert secret not in said
            assert not any(secret.encode() in body for body in bodies)
        assert code not in said
        assert key not in repr(client.server.door)


def test_a_reader_that_does_not_read_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankmem_aggregator.page.connections.READ_S", 1.0)
    asked = LocalQueries.sql

    def large(queries: LocalQueries, text: str, parameters: Any = None) -> Any:
        if "session_overview" not in text or "LIMIT" not in text:
            return asked(queries, text, parameters)
        return pa.table({"bytes": [os.urandom(12 << 20)]})

    with served_page(stored(tmp_path / "a.duckdb")) as client:
        monkeypatch.setattr(LocalQueries, "sql", large)
        host, port = client.netloc.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            head = f"GET {SESSIONS} HTTP/1.1\r\nHost: localhost\r\nCookie: {client.cookie}\r\n\r\n"
            slow.sendall(head.encode())
            until("it is connected", lambda: len(client.server.connections) >= 1)
            until("it is cut", lambda: len(client.server.connections) == 0, 15)
        assert len(client.request("GET", SESSIONS).body) > 12 << 20, "who reads gets all"
