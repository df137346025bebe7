"""Bounds on the calls that a client may keep open, so that no client keeps the others out.

Stage: the aggregator's gRPC boundary. In: a call's peer, as gRPC names it; out: its host, or a refusal with
the reason. A call that stays open holds one of a bounded number of slots: shippers' calls are counted by
their service; health watches, reflection and calls whose message has not arrived, here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from rankmem_aggregator.server.grpc_errors import abort
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.sealing import DamagedError

WATCHES_MAX: Final = 64
"""Health watches at once: balancers and sidecars, each with one."""
REFLECTIONS_MAX: Final = 4
"""Reflection calls at once: interactive tools; each holds a thread."""
REFLECTION_TIMEOUT_S: Final = 60.0
"""Longest reflection call; a tool needs a moment."""
UNSENT_MAX: Final = 64
"""Calls whose one message has not arrived. gRPC gives each a thread that waits for it, for ever."""
UNSENT_TIMEOUT_S: Final = 20.0
"""For that message, which a client sends with the call."""
PEER_SHARE: Final = 2
"""One client may have one in so many of these slots."""


def host_of(peer: str) -> str:
    """The host that a call comes from, without the port; for IPv6 its /64, since a host may have all of it.

    Args:
        peer: from ``ServicerContext.peer()``: ``ipv4:10.0.0.7:41234``, ``ipv6:[::1]:41234``.
    """
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return kind  # a socket of this host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class CallSlots:
    """A bounded number of slots for calls of one kind.

    Args:
        what: the name of the calls in a refusal.
        slots_max: at once; one host may have half of them.
    """

    def __init__(self, what: str, slots_max: int) -> None:
        self._what = what
        self._max = slots_max
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, context: grpc.ServicerContext) -> None:
        """Takes a slot until the call ends; refuses the call where there is none."""
        host = self._enter(context)
        if not context.add_callback(lambda: self._leave(host)):
            self._leave(host)  # it has ended meanwhile

    @contextlib.contextmanager
    def taken(self, context: grpc.ServicerContext) -> Iterator[None]:
        """The same for as long as the block runs."""
        host = self._enter(context)
        try:
            yield
        finally:
            self._leave(host)

    def _enter(self, context: grpc.ServicerContext) -> str:
        host = host_of(context.peer())
        with self._lock:
            is_free = self._taken.total() < self._max and self._taken[host] < max(self._max // PEER_SHARE, 1)
            if is_free:
                self._taken[host] += 1
        if not is_free:
            error = RankmemError(
                Code.EXHAUSTED,
                f"too many {self._what} are open: {self._max} at once, {self._max // PEER_SHARE} a host",
                "end one, or try again later",
            )
            abort(context, error)
        return host

    def _leave(self, host: str) -> None:
        with self._lock:
            self._taken[host] -= 1
            if not self._taken[host]:
                del self._taken[host]


class Health(health.HealthServicer):
    """Standard health checking, with a bounded number of watches: it asks for no token."""

    def __init__(self) -> None:
        self._slots = CallSlots("health watches", WATCHES_MAX)
        super().__init__()

    def Watch(self, request: Any, context: Any, send_response_callback: Any = None) -> Any:
        """As in the standard."""
        self._slots.take(context)
        return super().Watch(request, context, send_response_callback)


class Reflection(reflection.ReflectionServicer):
    """Standard reflection, with a bounded number of calls of a bounded length."""

    def __init__(self, service_names: tuple[str, ...]) -> None:
        self._slots = CallSlots("reflection calls", REFLECTIONS_MAX)
        super().__init__(service_names)

    def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> Any:
        """As in the standard."""
        self._slots.take(context)
        with cut_after(REFLECTION_TIMEOUT_S, context):
            reflect: Any = super().ServerReflectionInfo
            try:
                yield from reflect(request_iterator, context)
            except DamagedError as exc:
                abort(context, exc)


class FirstMessages(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs alone
    """Has calls with one message wait for it here, for a while and a few at a time.

    Otherwise a client that opens calls and sends nothing holds every thread. The wire is the same.
    """

    def __init__(self) -> None:
        self._slots = CallSlots("calls without a message", UNSENT_MAX)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The service's handler; one that takes a single message becomes one that reads it from a stream."""
        handler = continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        forms = handler.request_deserializer, handler.response_serializer
        answer: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

        def one(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            return answer(self._first(requests, context), context)

        def many(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            yield from answer(self._first(requests, context), context)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(many, *forms)
        return grpc.stream_unary_rpc_method_handler(one, *forms)

    def _first(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        with self._slots.taken(context), cut_after(UNSENT_TIMEOUT_S, context):
            try:
                request = next(requests, None)
            except DamagedError as exc:
                abort(context, exc)
        if request is None:
            abort(context, RankmemError(Code.INVALID, "the call ended without its message", "send one"))
        return request


@contextlib.contextmanager
def cut_after(seconds: float, context: grpc.ServicerContext) -> Iterator[None]:
    """Cancels a call that lasts longer, also because its client does not read: it would keep its slot."""
    timer = threading.Timer(seconds, context.cancel)
    timer.name, timer.daemon = "rankmem-call-timer", True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
