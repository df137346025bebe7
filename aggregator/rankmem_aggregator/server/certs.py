"""A private CA with the certificates, keys and tokens that a cluster needs, in a folder of the user's own.

Stage: before anything runs, on the administrator's machine. In: a folder, names, days. Out: the files below.
Existing files are kept: the CA is used again, so a certificate that was removed is issued again by the same
CA. Needs ``cryptography`` (the extra ``certs``), which nothing else of rankmem imports.

    ca.pem                            the trusted CA: a copy for every client and, for mTLS, the aggregator
    ca.key                            signs certificates; needed nowhere else, keep it off the cluster
    aggregator.pem, aggregator.key    rankmem serve --tls-cert --tls-key
    client.pem, client.key            clients' --tls-cert --tls-key, where the aggregator has --tls-client-ca
    ingest.token, query.token         rankmem serve --ingest-token-file --query-token-file; --token-file
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmem_aggregator.extras import require_extra
from rankmem_protos.credentials import read_private, read_public
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS_DEFAULT: Final = 365
DAYS_MAX: Final = 3650
CA_DAYS: Final = 3650
"""A CA outlives its certificates: renewing a certificate must not mean giving every client a new CA."""
SKEW: Final = timedelta(hours=1)
"""Certificates begin so much earlier: clocks of a cluster differ."""
TOKEN_BYTES: Final = 32
ALWAYS_NAMED: Final = ("localhost", "127.0.0.1", "::1")
"""A reader on the aggregator's own host is led to it by loopback."""
TOKEN_FILES: Final = ("ingest.token", "query.token")
_DNS_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*|\*(\.[A-Za-z0-9_-]{1,63})+")
"""Also a wildcard for the first label, for pods of a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The files that :func:`make` wrote, and those that existed."""

    files: tuple[Path, ...]
    kept: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    cert: x509.Certificate
    key: EllipticCurvePrivateKey


def make(folder: Path, names: Sequence[str] = (), days: int = DAYS_DEFAULT) -> Made:
    """Writes the missing files of a cluster.

    Args:
        folder: made with mode 0700 where it does not exist.
        names: of the aggregator, DNS names and IP addresses that clients dial; beside this host's own.
        days: how long certificates hold, from 1 to 3650; the CA holds 3650.

    Raises:
        RankmemError: UNSUPPORTED without ``cryptography``, INVALID for a bad name or number of days, DENIED
            where the folder cannot be written, CONFLICT for half of a pair.
    """
    if not 1 <= days <= DAYS_MAX:
        raise RankmemError(Code.INVALID, f"--days is {days}", f"give 1 to {DAYS_MAX}")
    require_extra("certs", "making certificates", "the machine that makes them alone needs it")
    alternatives = _alternatives([*names, *_own_names(), *ALWAYS_NAMED])
    made: list[Path] = []
    kept: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_there(folder, "ca", kept):
            made += _write_pair(folder, "ca", _new_ca())
        ca = _read_pair(folder / "ca.pem", folder / "ca.key")
        if not _is_there(folder, "aggregator", kept):
            made += _write_pair(folder, "aggregator", _signed(ca, "rankmem aggregator", days, alternatives))
        if not _is_there(folder, "client", kept):
            made += _write_pair(folder, "client", _signed(ca, "rankmem client", days, None))
        for path in (folder / name for name in TOKEN_FILES):
            if path.exists():
                kept.append(path)
            else:
                made.append(_write(path, secrets.token_urlsafe(TOKEN_BYTES).encode() + b"\n", 0o600))
    except OSError as exc:
        raise RankmemError(
            Code.DENIED, f"cannot write to {folder}: {exc.strerror}", "give a folder of your own"
        ) from exc
    return Made(files=tuple(made), kept=tuple(kept))


def _own_names() -> list[str]:
    return list(dict.fromkeys((socket.gethostname(), socket.getfqdn())))


def _alternatives(names: Sequence[str]) -> x509.SubjectAlternativeName:
    from cryptography import x509

    entries: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            entries.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if not _DNS_NAME.fullmatch(name):
                raise RankmemError(
                    Code.INVALID, f"--name {name!r} is neither a DNS name nor an IP address", "--name node-0"
                ) from None
            entries.append(x509.DNSName(name))
    return x509.SubjectAlternativeName(entries)


def _is_there(folder: Path, name: str, kept: list[Path]) -> bool:
    there = [path for path in (folder / f"{name}.pem", folder / f"{name}.key") if path.exists()]
    if len(there) == 1:
        raise RankmemError(
            Code.CONFLICT, f"{there[0]} exists without its other half", "restore that one, or remove this one"
        )
    kept += there
    return bool(there)


def _new_ca() -> _Pair:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"rankmem CA {secrets.token_hex(4)}")
    builder = (
        _begun(subject, subject, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _Pair(_sign(builder, key, key), key)


def _signed(ca: _Pair, name: str, days: int, names: x509.SubjectAlternativeName | None) -> _Pair:
    """A certificate of the CA: an aggregator's with these names, a client's without any."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if names is None else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        _begun(_named(name), ca.cert.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return _Pair(_sign(builder, key, ca.key), key)


def _named(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _sign(
    builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(authority, critical=False).sign(signer, hashes.SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _read_pair(cert_path: Path, key_path: Path) -> _Pair:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        cert = x509.load_pem_x509_certificate(read_public(cert_path, "the CA"))
        key = load_pem_private_key(read_private(key_path, "the CA's key"), None)
    except (ValueError, TypeError) as exc:  # TypeError: it has a password
        raise RankmemError(
            Code.INVALID,
            f"{cert_path} and {key_path} are not a CA of rankmem certs: {exc}",
            "give another folder",
        ) from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != cert.public_key():
        raise RankmemError(
            Code.INVALID,
            f"{key_path} is not the key of {cert_path}",
            "restore the pair, or give another folder",
        )
    return _Pair(cert, key)


def _write_pair(folder: Path, name: str, pair: _Pair) -> list[Path]:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return [
        _write(folder / f"{name}.key", key, 0o600),
        _write(folder / f"{name}.pem", pair.cert.public_bytes(Encoding.PEM), 0o644),
    ]


def _write(path: Path, data: bytes, mode: int) -> Path:
    """Writes a file whole or not at all: never through a link, over a file or readable by others."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path
