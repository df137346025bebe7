"""Access by bearer tokens: one set may write events, one may read, one may also control what is recorded.

Stage: the aggregator's gRPC boundary, before any service. In: a call's method and metadata; out: the
service's own handler, or one that refuses. Where no token file is given everything is open (the configuration
allows that on loopback alone, or by ``--insecure``); where one is, a right without a file is granted to
nobody. Health checking is always open: it reveals only whether the service serves. Tokens are held as SHA-256
digests, compared in constant time with all valid ones, and never shown. Runs in gRPC's threads.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from rankmem_aggregator.server.grpc_errors import abort
from rankmem_protos.channel import AUTHORIZATION, SCHEME
from rankmem_protos.credentials import tokens_of
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

LOG_EVERY_S: Final = 60.0
"""Refused calls are logged at most once in this time, with their count: guessing must not fill the disk."""


class Right(enum.StrEnum):
    """What a token allows."""

    INGEST = "ingest"
    QUERY = "query"
    CONTROL = "control"


_RIGHT_OF_SERVICE: Final = {"rankmem.v1.Collector": Right.INGEST, "rankmem.v1.Query": Right.QUERY}
_RIGHT_OF_METHOD: Final = {"rankmem.v1.Query/Control": Right.CONTROL}
"""Methods that need another right than their service."""
_IMPLIED: Final = {Right.CONTROL: Right.QUERY}
"""Who may change what is recorded may see it."""
_DOES: Final = {
    Right.INGEST: "write events",
    Right.QUERY: "read",
    Right.CONTROL: "control what is recorded",
}
_OPEN_SERVICES: Final = frozenset({"grpc.health.v1.Health"})


class TokenFile:
    """The tokens of a file, as digests; read again when the file has changed."""

    def __init__(self, path: Path, option: str) -> None:
        """Raises RankmemError if there is no usable token in it."""
        self._path = path
        self._option = option
        self._lock = threading.Lock()
        self._seen = self._state()
        self._digests = self._read()

    def digests(self) -> tuple[bytes, ...]:
        """Digests of the valid tokens. A change that cannot be used is logged and has no effect."""
        with self._lock:
            now = self._state()
            if now != self._seen:
                self._seen = now
                try:
                    self._digests = self._read()
                    logger.info("%s was read again: %d tokens are valid", self._path, len(self._digests))
                except RankmemError as exc:
                    logger.warning("%s; the previous tokens stay valid", exc)
            return self._digests

    def _read(self) -> tuple[bytes, ...]:
        return tuple(_digest(token) for token in tokens_of(self._path, self._option))

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_ctime_ns


class Tokens:
    """The files of all rights.

    Args:
        files: by right; none at all: everything is open.

    Raises:
        RankmemError: a file cannot be used.
    """

    def __init__(self, files: Mapping[Right, Path | None]) -> None:
        self._files = {
            right: TokenFile(path, f"--{right}-token-file")
            for right, path in files.items()
            if path is not None
        }

    @property
    def are_asked(self) -> bool:
        """Whether a call needs one."""
        return bool(self._files)

    def rights_of(self, token: str) -> frozenset[Right]:
        """The rights of the token; every valid token is compared, whether or not one fits."""
        shown = _digest(token)
        found: set[Right] = set()
        for right, file in self._files.items():
            fits = False
            for digest in file.digests():
                fits |= hmac.compare_digest(shown, digest)
            if fits:
                found |= {right, _IMPLIED.get(right, right)}
        return frozenset(found)

    def refusal(self, method: str, metadata: Mapping[str, str | bytes]) -> Refusal | None:
        """Why a call is refused; None if it is not.

        Args:
            method: ``/package.Service/Method``.
            metadata: of the call.
        """
        service = method.strip("/").partition("/")[0]
        if not self._files or service in _OPEN_SERVICES:
            return None
        shown = metadata.get(AUTHORIZATION, "")
        if not isinstance(shown, str) or not shown.startswith(SCHEME):
            return _unauthenticated(
                "this aggregator requires a token", "--token-file FILE (RANKMEM_TOKEN_FILE)"
            )
        rights = self.rights_of(shown.removeprefix(SCHEME))
        if not rights:
            return _unauthenticated(
                "this aggregator does not know the token", "ask its administrator for a valid one"
            )
        needed = _RIGHT_OF_METHOD.get(method.strip("/"), _RIGHT_OF_SERVICE.get(service))
        if needed is None or needed in rights:
            return None
        error = RankmemError(
            Code.DENIED, f"the token may not {_DOES[needed]} here", f"use one of its {needed} tokens"
        )
        return Refusal(error, grpc.StatusCode.PERMISSION_DENIED)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error for a refused client, and the status: unknown token, or one with another right."""

    error: RankmemError
    status: grpc.StatusCode


class TokenInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs alone
    """Passes calls to their services by their tokens."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refused = _RefusedCalls()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The service's handler, or one that refuses."""
        handler = continuation(handler_call_details)
        metadata = dict(handler_call_details.invocation_metadata)
        refusal = self._tokens.refusal(handler_call_details.method, metadata)
        if refusal is None:
            return handler
        return _refusing(handler, refusal, self._refused)


class _RefusedCalls:
    """Counts refused calls for the log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._logged_s = float("-inf")

    def add(self, peer: str, reason: str) -> None:
        with self._lock:
            self._count += 1
            now_s = time.monotonic()
            if now_s - self._logged_s < LOG_EVERY_S:
                return
            count, self._count, self._logged_s = self._count, 0, now_s
        logger.warning("%d calls were refused, the last one from %s: %s", count, peer, reason)


def _refusing(
    handler: grpc.RpcMethodHandler[Any, Any] | None, refusal: Refusal, refused: _RefusedCalls
) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same shape: a streaming call is refused at once, not after its first message."""

    def one(request: Any, context: grpc.ServicerContext) -> Any:
        refused.add(context.peer(), refusal.error.message)
        abort(context, refusal.error, refusal.status)

    def many(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield one(request, context)

    if handler is None or not (handler.request_streaming or handler.response_streaming):
        return grpc.unary_unary_rpc_method_handler(one)
    if not handler.response_streaming:
        return grpc.stream_unary_rpc_method_handler(one)
    if not handler.request_streaming:
        return grpc.unary_stream_rpc_method_handler(many)
    return grpc.stream_stream_rpc_method_handler(many)


def _unauthenticated(message: str, hint: str) -> Refusal:
    return Refusal(RankmemError(Code.DENIED, message, hint), grpc.StatusCode.UNAUTHENTICATED)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
