"""The private CA: what OpenSSL makes of it, names, modes, and that nothing is overwritten."""

from __future__ import annotations

import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankmem_aggregator.server import certs
from rankmem_cli.main import app
from rankmem_protos.credentials import tokens_of
from rankmem_protos.errors import Code, RankmemError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certs") / "cluster"
    certs.make(made, ["node-0", "10.0.0.1", "*.pods.example"])
    return made


def handshake(
    server: Path, ca: Path, name: str, *, client: Path | None = None, client_ca: Path | None = None
) -> None:
    """A TLS handshake in memory by OpenSSL, as strict as it can be."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server.with_suffix(".pem"), server.with_suffix(".key"))
    if client_ca is not None:
        serving.verify_mode = ssl.CERT_REQUIRED
        serving.verify_flags |= ssl.VERIFY_X509_STRICT
        serving.load_verify_locations(client_ca)
    dialling = ssl.create_default_context(cafile=ca)
    dialling.verify_flags |= ssl.VERIFY_X509_STRICT
    if client is not None:
        dialling.load_cert_chain(client.with_suffix(".pem"), client.with_suffix(".key"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        dialling.wrap_bio(to_client, to_server, server_hostname=name),
        serving.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not ends


@pytest.mark.parametrize("name", ["node-0", "10.0.0.1", "a.pods.example", "localhost", "127.0.0.1", "::1"])
def test_openssl_takes_the_certificate_for_each_name(folder: Path, name: str) -> None:
    handshake(folder / "aggregator", folder / "ca.pem", name)


def test_another_name_and_another_ca_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(folder / "aggregator", folder / "ca.pem", "node-1")
    certs.make(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder / "aggregator", tmp_path / "other" / "ca.pem", "node-0")


def test_a_clients_certificate_is_taken_by_its_own_ca_alone_and_serves_nobody(
    folder: Path, tmp_path: Path
) -> None:
    ca = folder / "ca.pem"
    handshake(folder / "aggregator", ca, "node-0", client=folder / "client", client_ca=ca)
    certs.make(tmp_path / "other")
    with pytest.raises(ssl.SSLError):
        handshake(folder / "aggregator", ca, "node-0", client=tmp_path / "other" / "client", client_ca=ca)
    with pytest.raises(ssl.SSLError):
        handshake(folder / "aggregator", ca, "node-0", client=folder / "aggregator", client_ca=ca)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder / "client", ca, "node-0")


def test_secrets_are_readable_by_their_owner_alone(folder: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {
        "ca.key", "aggregator.key", "client.key", "ingest.token", "query.token",
    }  # fmt: skip
    assert {name for name, mode in modes.items() if mode == 0o644} == {
        "ca.pem",
        "aggregator.pem",
        "client.pem",
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    tokens = [tokens_of(folder / name, "--x") for name in certs.TOKEN_FILES]
    assert tokens[0] != tokens[1]


def test_a_second_run_keeps_all_and_makes_what_was_removed_by_the_same_ca(tmp_path: Path) -> None:
    first = certs.make(tmp_path, ["node-0"])
    before = {path: path.read_bytes() for path in first.files}
    assert certs.make(tmp_path).files == ()
    for path in (tmp_path / "aggregator.pem", tmp_path / "aggregator.key", tmp_path / "ingest.token"):
        path.unlink()
    again = certs.make(tmp_path, ["node-9"], days=30)
    assert {path.name for path in again.files} == {"aggregator.key", "aggregator.pem", "ingest.token"}
    assert all(path.read_bytes() == before[path] for path in again.kept)
    handshake(tmp_path / "aggregator", tmp_path / "ca.pem", "node-9")


def test_half_a_pair_and_a_foreign_key_are_not_used(tmp_path: Path) -> None:
    certs.make(tmp_path / "a")
    certs.make(tmp_path / "b")
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(RankmemError, match="is not the key of"):
        certs.make(tmp_path / "a")
    (tmp_path / "a" / "ca.key").unlink()
    with pytest.raises(RankmemError, match="without its other half") as caught:
        certs.make(tmp_path / "a")
    assert caught.value.code is Code.CONFLICT


def test_files_are_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    target = tmp_path / "victim"
    (tmp_path / "d" / "ingest.token").symlink_to(target)
    with pytest.raises(RankmemError, match="cannot write"):
        certs.make(tmp_path / "d")
    assert not target.exists()


@pytest.mark.parametrize("name", ["no such name", "", "-x", "a..b", "10.0.0.1/8", "x" * 64, "ü.example"])
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RankmemError, match="neither a DNS name nor an IP address"):
        certs.make(tmp_path, [name])


def test_days_have_bounds(tmp_path: Path) -> None:
    for days in (0, -1, 3651):
        with pytest.raises(RankmemError, match=f"--days is {days}"):
            certs.make(tmp_path, days=days)


def test_without_cryptography_it_says_which_extra_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from pathlib import Path\n"
        "from rankmem_aggregator.server import certs\n"
        f"certs.make(Path({str(tmp_path)!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert "pip install 'rankmem[certs]'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_makes_them_for_the_names_that_are_given(tmp_path: Path) -> None:
    made = tmp_path / "cluster"
    arguments = ["certs", str(made), "--name", "node-0", "--name", "10.0.0.1"]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    handshake(made / "aggregator", made / "ca.pem", "node-0")
