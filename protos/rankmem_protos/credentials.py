"""A client's credentials and the CA that it trusts: paths of files, read when a connection is made.

Stage: every process that dials, and the trainer, which only carries the paths on to the host's shipper: a
path may be in a command line, an environment, a spool; a token is in its file alone. Standard
library only.

A token file holds one token on a line of its own; empty lines and lines that begin with ``#`` do not count.
An aggregator's may hold several, so that one can replace another while both still count.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, Self

from rankmem_protos.errors import Code, RankmemError

PUBLIC_CA: Final = "public"
"""In place of a CA's file: the public authorities, for a certificate that one of them signed."""
TOKEN_CHARS_MIN: Final = 16
"""Shorter ones can be guessed over a network; ``rankmem certs`` makes 43 characters, 256 bits."""
TOKEN_CHARS_MAX: Final = 512  # of a token; those that rankmem certs makes have 43
FILE_BYTES_MAX: Final = 1 << 20
"""Of a certificate, a key or a token file; theirs are a few KiB."""
_FOR_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP

_VARIABLES: Final = {
    "tls_ca": "RANKMEM_TLS_CA",
    "tls_cert": "RANKMEM_TLS_CERT",
    "tls_key": "RANKMEM_TLS_KEY",
    "token_file": "RANKMEM_TOKEN_FILE",
}
INSECURE_VARIABLE: Final = "RANKMEM_INSECURE"
CLIENT_VARIABLES: Final = frozenset({*_VARIABLES.values(), INSECURE_VARIABLE})
"""All that :meth:`Credentials.from_environment` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Files of a client. Without any of them it dials plain text and shows nothing."""

    tls_ca: str | None = None
    """The CA that signed the aggregator's certificate (PEM), or ``public``. Given: TLS. RANKMEM_TLS_CA."""
    tls_cert: str | None = None
    """This client's own certificate, for an aggregator that requires one. RANKMEM_TLS_CERT."""
    tls_key: str | None = None
    """Its private key. RANKMEM_TLS_KEY."""
    token_file: str | None = None
    """Holds the token that is shown with each call. RANKMEM_TOKEN_FILE."""
    insecure: bool = False
    """Show the token in plain text to another host: the network itself is encrypted. RANKMEM_INSECURE=1."""

    def __post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise RankmemError(
                Code.INVALID,
                f"a certificate and its key belong together: --tls-cert {self.tls_cert}, "
                f"--tls-key {self.tls_key}",
                "give both, or neither",
            )
        if self.tls_cert and not self.tls_ca:
            raise RankmemError(
                Code.INVALID,
                f"--tls-cert {self.tls_cert} is of no use without the CA of the aggregator",
                "add --tls-ca FILE",
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **paths: object) -> Self:
        """The values given here, else those of the environment; None is not given. No file is read yet.

        Raises:
            RankmemError: INVALID for a certificate without its key or CA.
        """
        environment = os.environ if environment is None else environment
        chosen = {
            name: str(paths.get(name) or environment.get(variable) or "") or None
            for name, variable in _VARIABLES.items()
        }
        return cls(**chosen, insecure=environment.get(INSECURE_VARIABLE) == "1")

    @classmethod
    def from_facts(cls, facts: Mapping[str, object]) -> Self:
        """The reverse of :meth:`facts`."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in facts.items() if name in known})  # type: ignore[arg-type]

    @property
    def are_given(self) -> bool:
        """Whether any are given."""
        return bool(self.tls_ca or self.token_file)

    def facts(self) -> dict[str, object]:
        """The values for JSON: absolute paths, no secret."""
        return asdict(self.absolute())

    def absolute(self) -> Self:
        """The same files with absolute paths."""
        return type(self)(
            tls_ca=self.tls_ca if self.tls_ca == PUBLIC_CA else _absolute(self.tls_ca),
            tls_cert=_absolute(self.tls_cert),
            tls_key=_absolute(self.tls_key),
            token_file=_absolute(self.token_file),
            insecure=self.insecure,
        )

    def environment(self) -> dict[str, str]:
        """The variables that give them to another process: paths, no secret."""
        given = self.absolute()
        found = {variable: getattr(given, name) or "" for name, variable in _VARIABLES.items()}
        found[INSECURE_VARIABLE] = "1" if self.insecure else ""
        return {variable: value for variable, value in found.items() if value}

    def only(self, *, tls: bool, token: bool) -> Self:
        """The part that an aggregator requires."""
        return type(self)(
            tls_ca=self.tls_ca if tls else None,
            tls_cert=self.tls_cert if tls else None,
            tls_key=self.tls_key if tls else None,
            token_file=self.token_file if token else None,
            insecure=self.insecure,
        )

    def check(self) -> None:
        """Reads every file once, so that a job fails before it starts and not in its shipper.

        Raises:
            RankmemError: one cannot be read, or others may read a secret.
        """
        self.token()
        if self.tls_key is not None:
            read_private(Path(self.tls_key), "--tls-key")
        for path, option in ((self.tls_cert, "--tls-cert"), (self.tls_ca, "--tls-ca")):
            if path not in (None, PUBLIC_CA):
                read_public(Path(path), option)

    def token(self) -> str | None:
        """The token, read now.

        Raises:
            RankmemError: the file cannot be read, others may read it, or it holds no token.
        """
        if self.token_file is None:
            return None
        return tokens_of(Path(self.token_file), "--token-file")[0]


def tokens_of(path: Path, option: str) -> tuple[str, ...]:
    """The tokens of a file, at least one.

    Raises:
        RankmemError: as :func:`read_private`; INVALID without a token, or for one that cannot be a token. The
            message never has the content of the file.
    """
    try:
        text = read_private(path, option).decode("ascii")
    except UnicodeDecodeError as exc:
        raise RankmemError(Code.INVALID, f"{option} {path} contains characters outside of ASCII") from exc
    lines = (line.strip() for line in text.splitlines())
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens:
        raise RankmemError(Code.INVALID, f"{option} {path} holds no token", "rankmem certs DIR makes some")
    for token in tokens:
        if not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX or not token.isprintable() or " " in token:
            raise RankmemError(
                Code.INVALID,
                f"{option} {path} holds a token that is not {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} "
                "characters without blanks",
                "rankmem certs DIR makes some; or: openssl rand -hex 32",
            )
    return tokens


def read_private(path: Path, option: str) -> bytes:
    """A file that holds a secret; refused where others than its owner may read it.

    Root's own file may be read by the group: so Kubernetes gives a secret to a container without root.

    Raises:
        RankmemError: NOT_FOUND or DENIED, with the option, the path and the mode.
    """
    return _read(path, option, private=True)


def read_public(path: Path, option: str) -> bytes:
    """A certificate.

    Raises:
        RankmemError: NOT_FOUND or DENIED, with the option and the path.
    """
    return _read(path, option, private=False)


def _read(path: Path, option: str, *, private: bool) -> bytes:
    try:
        with path.open("rb") as file:
            if private:
                _check_private(os.fstat(file.fileno()), path, option)
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as exc:
        raise RankmemError(
            Code.NOT_FOUND, f"{option}: there is no file {path}", f"give {option} FILE"
        ) from exc
    except OSError as exc:
        raise RankmemError(Code.DENIED, f"{option}: cannot read {path}: {exc.strerror}") from exc
    if len(data) > FILE_BYTES_MAX:
        raise RankmemError(Code.INVALID, f"{option}: {path} has more than {FILE_BYTES_MAX} bytes")
    return data


def _check_private(found: os.stat_result, path: Path, option: str) -> None:
    mode = stat.S_IMODE(found.st_mode)
    mine = found.st_uid == os.geteuid()
    if not mine and found.st_uid != 0:
        raise RankmemError(
            Code.DENIED,
            f"{option}: {path} belongs to another user ({found.st_uid})",
            f"sudo chown {os.geteuid()} {path}",
        )
    if mode & _FOR_OTHERS or (mine and mode & stat.S_IRWXG):
        raise RankmemError(
            Code.DENIED,
            f"{option}: {path} holds a secret and has mode {mode:04o}: others may read it",
            f"chmod 600 {path}",
        )


def _absolute(path: str | None) -> str | None:
    return os.path.abspath(os.path.expanduser(path)) if path else None
