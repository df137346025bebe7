"""Who gets in: a running aggregator with TLS, client certificates and tokens, asked by the real clients."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.server import certs
from rankmem_protos.channel import dial
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.query_pb2 import StatusRequest
from rankmem_protos.query_pb2_grpc import QueryStub
from rankmem_ship.deliver import deliver
from rankmem_ship.sender import Sender
from spool_synthetic import SyntheticSpool, training_records

CONNECT_S = 20.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pki") / "certs"
    certs.make(made)
    certs.make(made.with_name("other"))
    return made


@pytest.fixture(scope="module")
def closed(folder: Path) -> Iterator[server.Aggregator]:
    """TLS, client certificates, a token for each right: as it would stand off loopback."""
    config = AggregatorConfig(
        database_path=folder.parent / "closed.duckdb",
        listen="0.0.0.0:0",
        tls_cert=folder / "aggregator.pem",
        tls_key=folder / "aggregator.key",
        tls_client_ca=folder / "ca.pem",
        ingest_token_file=folder / "ingest.token",
        query_token_file=folder / "query.token",
    )
    with server.open(config) as running:
        yield running


def loopback(running: server.Aggregator) -> str:
    return f"127.0.0.1:{running.address.rpartition(':')[2]}"


def credentials(folder: Path, token: str | None = None, *, client: bool = True) -> Credentials:
    return Credentials(
        tls_ca=str(folder / "ca.pem"),
        tls_cert=str(folder / "client.pem") if client else None,
        tls_key=str(folder / "client.key") if client else None,
        token_file=None if token is None else str(folder / f"{token}.token"),
    )


def connection(sender: Sender) -> RankmemError | None:
    """Polls until the sender is welcomed (None) or knows why not."""
    deadline = time.monotonic() + CONNECT_S
    wake = threading.Event()
    try:
        while not sender.connected and sender.error is None:
            assert time.monotonic() < deadline
            sender.poll()
            wake.wait(0.01)
        return sender.error
    finally:
        sender.close()


def ask(address: str, given: Credentials) -> list[dict[str, object]]:
    paths = {name: getattr(given, name) for name in ("tls_ca", "tls_cert", "tls_key", "token_file")}
    with connect(address, **paths) as queries:
        return queries.sql("SELECT 42 AS n").to_pylist()


def test_the_query_token_reads_and_the_ingest_token_writes(closed: server.Aggregator, folder: Path) -> None:
    address = loopback(closed)
    assert ask(address, credentials(folder, "query")) == [{"n": 42}]
    assert connection(Sender(address, credentials(folder, "ingest"), "h", threading.Event())) is None


def test_no_token_reads_with_the_right_to_write_nor_writes_with_that_to_read(
    closed: server.Aggregator, folder: Path
) -> None:
    address = loopback(closed)
    with pytest.raises(RankmemError, match="may not read here") as caught:
        ask(address, credentials(folder, "ingest"))
    assert caught.value.code is Code.DENIED
    error = connection(Sender(address, credentials(folder, "query"), "h", threading.Event()))
    assert error is not None
    assert error.code is Code.DENIED
    assert "may not write events" in error.message


def test_without_a_token_and_with_a_guessed_one_nothing_is_told(
    closed: server.Aggregator, folder: Path, tmp_path: Path
) -> None:
    address = loopback(closed)
    with pytest.raises(RankmemError, match="requires a token") as caught:
        ask(address, credentials(folder))
    assert caught.value.code is Code.DENIED
    guessed = tmp_path / "guessed"
    guessed.write_text("0123456789abcdef0123456789abcdef")
    guessed.chmod(0o600)
    given = Credentials(
        tls_ca=str(folder / "ca.pem"),
        tls_cert=str(folder / "client.pem"),
        tls_key=str(folder / "client.key"),
        token_file=str(guessed),
    )
    with pytest.raises(RankmemError, match="does not know the token"):
        ask(address, given)
    line = dial(address, given)
    with pytest.raises(grpc.RpcError) as refused:
        QueryStub(line.channel).Status(StatusRequest(), metadata=line.metadata)
    line.channel.close()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_without_a_certificate_of_the_ca_no_client_gets_as_far_as_its_token(
    closed: server.Aggregator, folder: Path
) -> None:
    address = loopback(closed)
    with pytest.raises(RankmemError, match="no aggregator answers"):
        ask(address, credentials(folder, "query", client=False))
    other = folder.with_name("other")
    stranger = Credentials(
        tls_ca=str(folder / "ca.pem"),
        tls_cert=str(other / "client.pem"),
        tls_key=str(other / "client.key"),
        token_file=str(folder / "query.token"),
    )
    with pytest.raises(RankmemError, match="no aggregator answers"):
        ask(address, stranger)


def test_a_client_sends_its_token_to_no_aggregator_of_another_ca_and_says_what_is_wrong(
    closed: server.Aggregator, folder: Path
) -> None:
    wrong = Credentials(
        tls_ca=str(folder.with_name("other") / "ca.pem"), token_file=str(folder / "query.token")
    )
    with pytest.raises(RankmemError) as caught:
        ask(loopback(closed), wrong)
    assert "not signed by --tls-ca" in caught.value.hint


def test_plain_text_meets_tls_and_tls_meets_plain_text_with_a_hint(
    closed: server.Aggregator, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(RankmemError) as caught:
        ask(loopback(closed), Credentials())
    assert "--tls-ca" in caught.value.hint
    config = AggregatorConfig(database_path=tmp_path / "plain.duckdb", listen="127.0.0.1:0")
    with server.open(config) as plain:
        with pytest.raises(RankmemError) as caught:
            ask(plain.address, credentials(folder))
        assert "plain text" in caught.value.hint


def test_a_token_does_not_travel_to_another_host_in_plain_text(folder: Path) -> None:
    given = Credentials(token_file=str(folder / "query.token"))
    with pytest.raises(RankmemError, match="in plain text") as caught:
        dial("192.0.2.1:7077", given)
    assert caught.value.code is Code.DENIED
    for allowed in (
        dial("127.0.0.1:1", given),
        dial("192.0.2.1:7077", Credentials(token_file=given.token_file, insecure=True)),
    ):
        assert "Bearer" not in repr(allowed)
        allowed.channel.close()


def test_health_answers_without_a_token(closed: server.Aggregator, folder: Path) -> None:
    line = dial(loopback(closed), credentials(folder))
    reply = health_pb2_grpc.HealthStub(line.channel).Check(health_pb2.HealthCheckRequest())
    line.channel.close()
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_a_file_that_a_closed_aggregator_holds_leads_to_it_with_the_files_given(
    closed: server.Aggregator, folder: Path
) -> None:
    path = closed.config.database_path
    with connect(
        path,
        tls_ca=folder / "ca.pem",
        tls_cert=folder / "client.pem",
        tls_key=folder / "client.key",
        token_file=folder / "query.token",
    ) as queries:
        assert queries.sql("SELECT 1 AS n").to_pylist() == [{"n": 1}]


def test_a_file_that_an_open_aggregator_holds_gets_no_token(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKMEM_TLS_CA", str(folder / "ca.pem"))
    monkeypatch.setenv("RANKMEM_TOKEN_FILE", str(folder / "query.token"))
    path = tmp_path / "open.duckdb"
    with server.open(AggregatorConfig.embedded(path)), connect(path) as queries:
        assert queries.sql("SELECT 1 AS n").to_pylist() == [{"n": 1}]
        assert queries._line.metadata == ()  # type: ignore[attr-defined]


def test_an_embedded_aggregator_takes_nothing_of_a_served_ones_environment(tmp_path: Path) -> None:
    environment = {"RANKMEM_SERVE_TLS_CERT": "c", "RANKMEM_LISTEN": "0.0.0.0:1", "RANKMEM_THREADS": "2"}
    config = AggregatorConfig.embedded(tmp_path / "x.duckdb", environment)
    assert (config.tls_cert, config.listen, config.threads) == (None, "127.0.0.1:0", 2)


def test_a_certificate_that_is_renewed_counts_without_a_restart(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    other = folder.with_name("other")

    def bring(source: Path) -> None:
        for name in ("aggregator.key", "aggregator.pem"):
            (mine / f"{name}.new").write_bytes((source / name).read_bytes())
            (mine / f"{name}.new").chmod(0o600)
            (mine / f"{name}.new").replace(mine / name)

    bring(folder)
    config = AggregatorConfig(
        database_path=tmp_path / "renewed.duckdb",
        listen="127.0.0.1:0",
        tls_cert=mine / "aggregator.pem",
        tls_key=mine / "aggregator.key",
    )
    with server.open(config) as running:
        assert ask(running.address, Credentials(tls_ca=str(folder / "ca.pem"))) == [{"n": 42}]
        bring(other)
        assert ask(running.address, Credentials(tls_ca=str(other / "ca.pem"))) == [{"n": 42}]
        with pytest.raises(RankmemError):
            ask(running.address, Credentials(tls_ca=str(folder / "ca.pem")))
        (mine / "aggregator.pem").write_text("not a certificate")
        assert ask(running.address, Credentials(tls_ca=str(other / "ca.pem"))) == [{"n": 42}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda mine: (mine / "aggregator.key").chmod(0o640), "mode 0640"),
        (lambda mine: (mine / "aggregator.pem").write_text("x"), "not a certificate and its key"),
        (lambda mine: (mine / "aggregator.key").write_text("x"), "not a certificate and its key"),
        (
            lambda mine: (mine / "aggregator.key").write_bytes((mine / "client.key").read_bytes()),
            "not a certificate and its key",
        ),
        (lambda mine: (mine / "ca.pem").write_text("x"), "holds no certificate"),
        (lambda mine: (mine / "ca.pem").unlink(), "no file"),
        (lambda mine: (mine / "ingest.token").chmod(0o644), "mode 0644"),
    ],
)
def test_files_that_cannot_be_used_stop_the_start_with_their_option(
    tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    certs.make(tmp_path)
    change(tmp_path)
    config = AggregatorConfig(
        database_path=tmp_path / "never.duckdb",
        listen="127.0.0.1:0",
        tls_cert=tmp_path / "aggregator.pem",
        tls_key=tmp_path / "aggregator.key",
        tls_client_ca=tmp_path / "ca.pem",
        ingest_token_file=tmp_path / "ingest.token",
    )
    with pytest.raises(RankmemError, match=said) as caught:
        server.open(config)
    assert "--" in str(caught.value)


def test_what_is_left_on_disk_is_delivered_with_the_files_that_the_spool_names(
    closed: server.Aggregator, folder: Path, tmp_path: Path
) -> None:
    spool = SyntheticSpool(path=tmp_path / "0SECUREDDISK" / "0-0-1", session_id="0SECUREDDISK")
    spool.append(training_records(spool, 200))
    spool.end()
    meta = json.loads((spool.path / "meta.json").read_text())
    named = {"aggregator": loopback(closed), "credentials": credentials(folder, "query").facts()}
    (spool.path / "meta.json").write_text(json.dumps(meta | named))
    report = deliver(tmp_path, timeout_s=1.0)
    assert "may not write events" in str(report.errors)
    assert report.spools_left == 1
    named["credentials"] = credentials(folder, "ingest").facts()
    (spool.path / "meta.json").write_text(json.dumps(meta | named))
    # For another aggregator than the spool's own its files are not shown: plain text meets TLS.
    report = deliver(tmp_path, loopback(closed), timeout_s=1.0)
    assert report.spools_left == 1
    report = deliver(tmp_path, timeout_s=CONNECT_S)
    assert (report.spools_delivered, report.spools_left, report.errors) == (1, 0, [])
    (stored,) = (
        closed.store.cursor()
        .execute("SELECT count(*) FROM ingest_progress WHERE session_id = '0SECUREDDISK' AND final")
        .fetchall()
    )
    assert stored == (1,)


def test_guessing_is_logged_now_and_then_and_never_with_what_was_guessed(
    closed: server.Aggregator, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = dial(loopback(closed), credentials(folder))
    guesses = [f"guess-{number:020}" for number in range(50)]
    with caplog.at_level(logging.DEBUG):
        for guess in guesses:
            with pytest.raises(grpc.RpcError):
                QueryStub(line.channel).Status(
                    StatusRequest(), metadata=(("authorization", f"Bearer {guess}"),)
                )
    line.channel.close()
    said = [record for record in caplog.records if "refused" in record.message]
    assert len(said) <= 1
    assert "guess-" not in caplog.text
