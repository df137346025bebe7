"""The aggregator's certificate, and the CA of its clients.

Stage: the aggregator's gRPC boundary, before the port is bound. In: PEM files; out: gRPC's server
credentials, which check the files at each handshake: a renewed certificate is used without a restart.
"""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path

import grpc

from rankmem_protos.credentials import read_private, read_public
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)


def server_credentials(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Credentials for ``add_secure_port``.

    Args:
        cert: the aggregator's certificate, followed by intermediate ones.
        key: its private key.
        client_ca: only clients with a certificate of this CA are served; None: all are.

    Raises:
        RankmemError: a file is missing, open to others or unusable; key and certificate do not fit.
    """
    files = _Files(cert, key, client_ca)
    return grpc.dynamic_ssl_server_credentials(
        files.configuration(),
        files.changed,  # type: ignore[arg-type]  # None is "as before", which the stubs do not know
        require_client_authentication=client_ca is not None,
    )


class _Files:
    """The three files, checked whenever they are read."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._lock = threading.Lock()
        self._seen: object = None

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """What the files hold now."""
        self._seen = self._state()
        key = read_private(self._key, "--tls-key")
        cert = read_public(self._cert, "--tls-cert")
        _check_pair(self._cert, self._key)
        ca = read_public(self._client_ca, "--tls-client-ca") if self._client_ca is not None else None
        if ca is not None:
            _check_ca(ca, self._client_ca)
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, None if nothing changed or it cannot be used. gRPC's threads."""
        with self._lock:
            if self._state() == self._seen:
                return None
            try:
                configuration = self.configuration()
            except RankmemError as exc:
                logger.warning("%s; the previous certificate stays in use", exc)
                return None
            logger.info("%s was read again", self._cert)
            return configuration

    def _state(self) -> object:
        try:
            paths = [path for path in (self._cert, self._key, self._client_ca) if path is not None]
            return [(found.st_mtime_ns, found.st_ino, found.st_size) for found in map(Path.stat, paths)]
        except OSError:
            return None


def _check_pair(cert: Path, key: Path) -> None:
    """Has OpenSSL read and compare both: gRPC itself would report nothing and fail every handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as exc:
        raise RankmemError(
            Code.INVALID,
            f"--tls-cert {cert} and --tls-key {key} are not a certificate and its key: {exc}",
            "both in PEM, the key without a password; rankmem certs DIR makes a pair",
        ) from exc


def _no_password() -> str:
    """In place of OpenSSL's question on the terminal."""
    raise ValueError("the key has a password")


def _check_ca(ca: bytes, path: Path | None) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as exc:
        raise RankmemError(
            Code.INVALID, f"--tls-client-ca {path} holds no certificate in PEM: {exc}", "give the CA's ca.pem"
        ) from exc
