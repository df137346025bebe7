"""A running aggregator as :class:`Queries`: SQL over gRPC, Arrow back.

Stage: query, in the reader's process. In: ``host:port``. Out: Arrow, chunk by chunk as the aggregator sends
it. Failures come back as the :class:`RankmemError` that the aggregator raised: its code and hint travel in
the trailing metadata ``rankmem-code`` and ``rankmem-hint``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

import pyarrow as pa

from rankmem_aggregator.query.aggregator_state import AggregatorState
from rankmem_aggregator.query.interrupts import Interrupts
from rankmem_aggregator.query.not_here import AN_AGGREGATOR
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.query.types import Value as PythonValue
from rankmem_aggregator.store.private_files import PRIVATE_MODE
from rankmem_protos.channel import dial, hint_of
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import CODE_OF_GRPC_STATUS_NAME, REFUSED, STALE_KEY, Code, RankmemError
from rankmem_protos.query_pb2 import (
    ControlReply,
    ControlRequest,
    ExportRequest,
    FetchRequest,
    SqlRequest,
    StatusRequest,
    Value,
)
from rankmem_protos.query_pb2_grpc import QueryStub
from rankmem_protos.quiet_grpc import grpc

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
CHUNK_BYTES_MAX: Final = 64 << 20
"""The largest message accepted: a chunk is a few MiB, one row of a long list may be more."""

CHANNEL_OPTIONS: Final[Sequence[tuple[str, str | int]]] = (
    ("grpc.max_receive_message_length", CHUNK_BYTES_MAX),
    # A question may take its time, but an aggregator that answers no ping for so long is gone or stopped.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)

STATUS_TIMEOUT_S: Final = 10.0
"""It is answered from memory."""


class Rewording(Protocol):
    """How statements are worded."""

    def current(self, text: str) -> str:
        """The statement as it is sent now."""
        ...

    def next(self, text: str) -> bool:
        """Words a statement anew, after it was refused; false where it may not be."""
        ...


class RemoteQueries(Queries):
    """An aggregator at an address. Nothing is sent before the first question.

    Args:
        address: ``host:port``.
        credentials: for the aggregator, and the CA to trust; None: plain text, no token.
        timeout_s: for one question, in seconds; 0 leaves it to the aggregator.
    """

    def __init__(
        self, address: str, credentials: Credentials | None = None, *, timeout_s: float = 0.0
    ) -> None:
        self.target = self.aggregator = address
        self._timeout_s = timeout_s
        self._credentials = Credentials() if credentials is None else credentials
        self._line = dial(address, self._credentials, CHANNEL_OPTIONS)
        self._stub = QueryStub(self._line.channel)
        self._interrupts = Interrupts()
        self.rewording: Rewording | None = None
        """Words anew a statement that is refused since the aggregator crashed while it ran; None: nothing."""

    def sql(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        return pa.Table.from_batches(list(self.stream(text, parameters)))

    def stream(self, text: str, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        if self.rewording is None:
            yield from self._stream(text, parameters)
            return
        try:
            yield from self._stream(self.rewording.current(text), parameters)
        except RankmemError as exc:  # before its first batch
            if not (
                exc.code is Code.DENIED and exc.message.startswith(REFUSED) and self.rewording.next(text)
            ):
                raise
            yield from self._stream(self.rewording.current(text), parameters)

    def _stream(self, text: str, parameters: Parameters | None) -> Iterator[pa.RecordBatch]:
        request = SqlRequest(
            sql=text,
            parameters={name: _wire_value(value) for name, value in (parameters or {}).items()},
            timeout_s=self._timeout_s,
        )
        self._interrupts.check()
        call = self._stub.Sql(request, metadata=self._line.metadata)
        try:
            with self._interrupts.running(call.cancel):
                self._heard(_stale_of(call))
                yield from _without_empty(batch for chunk in call for batch in _batches(chunk.arrow_ipc))
        except grpc.RpcError as exc:
            raise self._error_of(exc) from exc
        finally:
            call.cancel()  # type: ignore[no-untyped-call]  # a reader who stops early also stops the aggregator's query

    def copy_to(self, out_path: Path) -> None:
        if out_path.exists():
            raise RankmemError(Code.CONFLICT, f"{out_path} already exists", "give another name, or remove it")
        unfinished = out_path.with_name(f"{out_path.name}.{os.getpid()}.tmp")
        try:
            with open(os.open(unfinished, _NEW, PRIVATE_MODE), "wb") as file:
                call = self._stub.ExportDatabase(ExportRequest(), metadata=self._line.metadata)
                self._heard(_stale_of(call))
                for chunk in call:
                    file.write(chunk.data)
            unfinished.replace(out_path)
        except grpc.RpcError as exc:
            raise self._error_of(exc) from exc
        except OSError as exc:
            raise RankmemError(
                Code.EXHAUSTED, f"cannot write {out_path}: {exc.strerror}", "give another path"
            ) from exc
        finally:
            unfinished.unlink(missing_ok=True)

    def aggregator_state(self) -> AggregatorState:
        try:
            reply = self._stub.Status(StatusRequest(), metadata=self._line.metadata, timeout=STATUS_TIMEOUT_S)
        except grpc.RpcError as exc:
            raise self._error_of(exc) from exc
        return AggregatorState.of(reply)

    def fetch(self, spool_id: str, ranges: Sequence[tuple[int, int]]) -> bool:
        """Asks the shipper of a spool for stretches of its log; they come by themselves.

        Args:
            spool_id: the spool.
            ranges: first and last position of each stretch, as ``availability`` has them.

        Returns:
            False where no shipper of it is connected to this aggregator.
        """
        firsts, lasts = zip(*ranges, strict=True)
        request = FetchRequest(spool_id=spool_id, sequence_first=firsts, sequence_last=lasts)
        try:
            reply = self._stub.Fetch(request, metadata=self._line.metadata, timeout=STATUS_TIMEOUT_S)
        except grpc.RpcError as exc:
            raise self._error_of(exc) from exc
        return bool(reply.connected)

    def control(self, request: ControlRequest) -> ControlReply:
        """Tells ranks how much to record from a step on.

        Raises:
            RankmemError: DENIED without the right, NOT_FOUND or UNSUPPORTED where not all ranks can be told;
                UNSUPPORTED also for an older aggregator.
        """
        try:
            return self._stub.Control(request, metadata=self._line.metadata, timeout=STATUS_TIMEOUT_S)
        except grpc.RpcError as exc:
            if exc.code() is grpc.StatusCode.UNIMPLEMENTED and "rankmem-code" not in _trailing(exc):
                raise RankmemError(
                    Code.UNSUPPORTED,
                    f"the aggregator at {self.target} is of a version of rankmem without control",
                    "upgrade rankmem there, and start it again",
                ) from exc
            raise self._error_of(exc) from exc

    def interrupt(self) -> None:
        self._interrupts.interrupt()

    def allow(self) -> None:
        self._interrupts.allow()

    def close(self) -> None:
        self._line.channel.close()

    def _error_of(self, exc: grpc.RpcError) -> RankmemError:
        status: grpc.StatusCode = exc.code()
        details = exc.details() or ""
        trailing = _trailing(exc)
        if "rankmem-code" in trailing:
            hint = trailing.get("rankmem-hint", "")
            hint = hint.replace(f"--aggregator {AN_AGGREGATOR}", f"--aggregator {self.target}")
            return RankmemError(_code(trailing["rankmem-code"]), details, hint)
        if status is grpc.StatusCode.UNAVAILABLE:
            return RankmemError(
                Code.UNAVAILABLE,
                f"no aggregator answers at {self.target}: {details}",
                hint_of(details, self._credentials)
                or "start one: rankmem serve --db FILE --listen HOST:PORT",
            )
        code = CODE_OF_GRPC_STATUS_NAME.get(status.name, Code.INTERNAL)
        return RankmemError(code, f"{self.target}: {details or status.name}")


def _wire_value(value: PythonValue) -> Value:
    if value is None:
        return Value(null=True)
    if isinstance(value, bool):
        return Value(boolean=value)
    if isinstance(value, int):
        return Value(integer=value)
    if isinstance(value, float):
        return Value(real=value)
    return Value(text=value)


def _batches(arrow_ipc: bytes) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(pa.py_buffer(arrow_ipc)) as reader:
        yield from reader
        yield pa.RecordBatch.from_pylist([], schema=reader.schema)


def _without_empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with rows; where there are none, one empty batch for its schema."""
    last, any_rows = None, False
    for last in batches:
        if last.num_rows:
            any_rows = True
            yield last
    if last is not None and not any_rows:
        yield last


def _trailing(exc: grpc.RpcError) -> dict[str, str]:
    # The stubs type an entry as an opaque pair; grpc gives (str, str or bytes).
    pairs = cast("tuple[tuple[str, str | bytes], ...]", exc.trailing_metadata() or ())
    return {key: value for key, value in pairs if isinstance(value, str)}


def _stale_of(call: grpc.Call) -> str:
    """What the aggregator says that its answer may lack."""
    found = dict(call.initial_metadata() or ()).get(STALE_KEY, b"")
    return found.decode(errors="replace") if isinstance(found, bytes) else found


def _code(text: str) -> Code:
    try:
        return Code(text)
    except ValueError:
        return Code.INTERNAL  # a newer aggregator's
