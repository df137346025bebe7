"""``--tls-ca``, ``--tls-cert``, ``--tls-key`` and ``--token-file`` of every verb that may ask an aggregator.

Stage: arguments. A verb declares ``aggregator`` and no more; :func:`with_credentials` adds the four options
beside it, and what they say is there for :func:`chosen_credentials` while the verb runs. So a verb need not
hand four paths on to whatever opens the connection. Reads no file.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rankmem_protos.credentials import Credentials

_TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Dial with TLS and trust this CA, or `public` ones.  [env: RANKMEM_TLS_CA]",
    ),
]
_TlsCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="Certificate of this client.  [env: RANKMEM_TLS_CERT]"),
]
_TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key.  [env: RANKMEM_TLS_KEY]")
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help="The token to show, in a file.  [env: RANKMEM_TOKEN_FILE]"
    ),
]
_OPTIONS: Final[dict[str, Any]] = {
    "tls_ca": _TlsCa,
    "tls_cert": _TlsCert,
    "tls_key": _TlsKey,
    "token_file": _TokenFile,
}

_chosen: ContextVar[Credentials | None] = ContextVar("rankmem_credentials", default=None)


def chosen_credentials() -> Credentials:
    """What the verb's options say, else the environment.

    Raises:
        RankmemError: INVALID for a certificate without its key or CA.
    """
    chosen = _chosen.get()
    return Credentials.from_environment() if chosen is None else chosen


def with_credentials(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the four options after its ``--aggregator``; one without that option is left alone."""
    signature = inspect.signature(verb)
    if "aggregator" not in signature.parameters:
        return verb

    @functools.wraps(verb)
    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in _OPTIONS}
        token = _chosen.set(Credentials.from_environment(**given))
        try:
            verb(**arguments)
        finally:
            _chosen.reset(token)

    hints = typing.get_type_hints(verb, include_extras=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _OPTIONS.items()
    ]
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        parameters += [keyword, *added] if name == "aggregator" else [keyword]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = hints | _OPTIONS
    return run
