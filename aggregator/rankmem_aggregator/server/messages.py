"""A message that cannot be read ends its call once, with an error of ours.

Stage: the aggregator's gRPC boundary. In: the bytes of a request; out: the message, or an error where the
service asks for it. Left to gRPC, such a call is given a status as the bytes are read and another as its
service returns; if the first is out by then, the second is never sent, and gRPC (1.85 and before) keeps the
call for good: its place is taken, and the server waits for it when it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from rankmem_protos.sealing import DamagedError


class ReadMessages(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs alone
    """Reads a call's streamed requests; their iterator raises :class:`DamagedError`."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The service's handler, with messages that are read here."""
        handler = continuation(handler_call_details)
        if handler is None or not handler.request_streaming:
            return handler
        read: Callable[[bytes], Any] = handler.request_deserializer or bytes
        answer: Any = handler.stream_stream if handler.response_streaming else handler.stream_unary

        def read_or_error(data: bytes) -> Any:
            try:
                return read(data)
            except Exception as exc:  # noqa: BLE001  protobuf's two implementations raise different ones
                return DamagedError(f"its {len(data)} bytes are not the message that they should be: {exc}")

        def answered(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            return answer(_good(requests), context)

        make: Any = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(answered, read_or_error, handler.response_serializer)  # type: ignore[no-any-return]


def _good(requests: Iterator[Any]) -> Iterator[Any]:
    for request in requests:
        if isinstance(request, DamagedError):
            raise request
        yield request
