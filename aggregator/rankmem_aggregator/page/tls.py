"""The page's certificate: a renewed one is used from the next handshake on, without a restart.

Stage: page; made in the main thread, asked in uvicorn's event loop. In: two PEM files; out: a context whose
files are looked at at each handshake, as the aggregator's are. What cannot be used changes nothing and is
logged.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from rankmem_protos.credentials import read_private, read_public
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """A context that serves what these files hold at the time of a handshake.

    Raises:
        RankmemError: INVALID for files that cannot be used now.
    """
    certificate = _Certificate(cert, key)
    context = certificate.load()
    # OpenSSL asks it at every handshake, also where the client names no server.
    context.sni_callback = certificate.asked
    return context


class _Certificate:
    """The two files, and the context of what they held last."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._seen: object = None
        self._renewed: ssl.SSLContext | None = None

    def load(self) -> ssl.SSLContext:
        """A context of what the files hold now."""
        self._seen = self._state()
        read_public(self._cert, "--page-tls-cert")
        read_private(self._key, "--page-tls-key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as exc:
            raise RankmemError(
                Code.INVALID,
                f"the certificate {self._cert} and the key {self._key} cannot be used: {exc}",
                "give a certificate and its own key in PEM, without a password; rankmem certs DIR makes both",
            ) from exc
        return context

    def asked(
        self, handshake: ssl.SSLSocket | ssl.SSLObject, name: str | None, first: ssl.SSLContext
    ) -> None:
        """Called at a handshake, before the certificate is shown."""
        if self._state() != self._seen:
            try:
                self._renewed = self.load()
            except RankmemError as exc:
                logger.warning("%s; the previous certificate stays in use", exc)
            else:
                logger.info("%s was read again", self._cert)
        if self._renewed is not None:
            handshake.context = self._renewed

    def _state(self) -> object:
        try:
            return [(s.st_mtime_ns, s.st_ino, s.st_size) for s in map(Path.stat, (self._cert, self._key))]
        except OSError:
            return None


def _no_password() -> str:
    """Called for an encrypted key; without it OpenSSL would ask at the terminal."""
    raise ValueError("the key has a password")
