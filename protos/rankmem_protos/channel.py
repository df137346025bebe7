"""How an aggregator is dialled: a gRPC channel, and the metadata of each call, by the client's credentials.

Stage: wire, the client's end, in the shipper and in readers. Never in the trainer. Files are read when a
channel is opened, so that a token or a certificate that was replaced counts from the next connection on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_protos.credentials import PUBLIC_CA, Credentials, read_private, read_public
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.quiet_grpc import grpc

AUTHORIZATION: Final = "authorization"
SCHEME: Final = "Bearer "
_LOOPBACK: Final = ("127.", "[::1]:", "localhost:")

_EXPLAINED: Final = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by --tls-ca (RANKMEM_TLS_CA), or has run out: give its own CA",
    ),
    ("ostname Verification Check failed", "its certificate does not name this host: rankmem certs --name"),
    ("Peer name", "its certificate does not name this host: rankmem certs --name"),
    ("WRONG_VERSION_NUMBER", "it speaks plain text: leave out --tls-ca (RANKMEM_TLS_CA)"),
    ("CERTIFICATE_REQUIRED", "it requires a client certificate: --tls-cert FILE --tls-key FILE"),
)
"""Words in failures of gRPC (1.74 to 1.85) and BoringSSL, and their meaning for the user."""


@dataclass(frozen=True, slots=True)
class Line:
    """An open channel and what every call on it carries. Never printed: the metadata holds the token."""

    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return "Line(…)"


def dial(address: str, credentials: Credentials, options: Sequence[tuple[str, str | int]] = ()) -> Line:
    """A channel to HOST:PORT; nothing is sent yet.

    Raises:
        RankmemError: a file cannot be read; DENIED where the token would travel in plain text.
    """
    token = credentials.token()
    metadata = ((AUTHORIZATION, SCHEME + token),) if token is not None else ()
    if credentials.tls_ca is not None:
        channel = grpc.secure_channel(address, _tls(credentials), options=list(options))
        return Line(channel, metadata)
    if token is not None and not credentials.insecure and not address.startswith(_LOOPBACK):
        raise RankmemError(
            Code.DENIED,
            f"the token would travel to {address} in plain text",
            "add --tls-ca FILE; where the network itself is encrypted, RANKMEM_INSECURE=1",
        )
    return Line(grpc.insecure_channel(address, options=list(options)), metadata)


def hint_of(details: str, credentials: Credentials) -> str:
    """A hint for a connection that failed; empty where the words are not known."""
    for words, meaning in _EXPLAINED:
        if words in details:
            return meaning
    if credentials.tls_ca is None and "Socket closed" in details:
        return "it may speak TLS: --tls-ca FILE (RANKMEM_TLS_CA); or it ended while answering: try again"
    return ""


def _tls(credentials: Credentials) -> grpc.ChannelCredentials:
    key = cert = None
    if credentials.tls_key and credentials.tls_cert:
        key = read_private(Path(credentials.tls_key), "--tls-key")
        cert = read_public(Path(credentials.tls_cert), "--tls-cert")
    ca = None if credentials.tls_ca in (None, PUBLIC_CA) else credentials.tls_ca
    roots = read_public(Path(ca), "--tls-ca") if ca is not None else None
    if roots is not None and b"-----BEGIN CERTIFICATE-----" not in roots:
        raise RankmemError(Code.INVALID, f"--tls-ca {ca} holds no certificate in PEM", "give the CA's ca.pem")
    return grpc.ssl_channel_credentials(roots, key, cert)
