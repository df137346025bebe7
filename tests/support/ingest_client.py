"""A shipper's end of the Ingest stream, for tests: sends requests, waits for replies with a limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import grpc

from rankmem_protos import collector_pb2 as pb
from rankmem_protos.collector_pb2_grpc import CollectorStub
from sample_batches import RankSource

TIMEOUT_S = 30.0


class IngestClient:
    """One stream. Use as a context manager.

    Args:
        address: HOST:PORT.
        greet: send Hello and wait for Welcome.
        receipts: be told what is received and not stored; such replies are skipped here, and counted.
    """

    def __init__(self, address: str, *, greet: bool = True, receipts: bool = False) -> None:
        self.num_received = 0
        self._channel = grpc.insecure_channel(address)
        self._requests: queue.SimpleQueue[pb.IngestRequest | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[pb.IngestReply | None] = queue.SimpleQueue()
        self.call = CollectorStub(self._channel).Ingest(iter(self._requests.get, None))
        self.error: grpc.RpcError | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if greet:
            self.send(
                hello=pb.Hello(protocol_version=1, shipper_id="test", host_uid="host-a", receipts=receipts)
            )
            self.welcome = self.reply().welcome

    def send(self, **body: object) -> None:
        """One request: the name of its body and the message."""
        self._requests.put(pb.IngestRequest(**body))  # type: ignore[arg-type]

    def open(self, source: RankSource) -> int:
        """Opens the source's spool; the last sequence stored."""
        self._requests.put(source.open_spool())
        return self.reply().spool_state.last_sequence

    def reply(self) -> pb.IngestReply:
        """The next reply."""
        while True:
            reply = self._replies.get(timeout=TIMEOUT_S)
            assert reply is not None, f"the stream ended: {self.error}"
            if reply.WhichOneof("body") != "received":
                return reply
            self.num_received += 1

    def acks(self, count: int) -> list[int]:
        """The last sequences of the next acknowledgements; any other reply but ``busy`` is an error."""
        until_s = time.monotonic() + TIMEOUT_S
        acks: list[int] = []
        while len(acks) < count:
            reply = self.reply()
            said = reply.WhichOneof("body")
            assert said == "ack" or (said == "busy" and time.monotonic() < until_s), reply
            acks += [reply.ack.last_sequence] if said == "ack" else []
        return acks

    def end(self) -> list[pb.IngestReply]:
        """Sends no more; the replies that are left, until the aggregator ends the stream."""
        self._requests.put(None)
        return self.rest()

    def rest(self) -> list[pb.IngestReply]:
        """The replies until the aggregator ends the stream."""
        return list(iter(lambda: self._replies.get(timeout=TIMEOUT_S), None))

    def _read(self) -> None:
        try:
            for reply in self.call:
                self._replies.put(reply)
        except grpc.RpcError as exc:
            self.error = exc
        self._replies.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()
        self._reader.join(TIMEOUT_S)


def requests_of(source: RankSource, batches: list[pb.Batch]) -> Iterator[pb.IngestRequest]:
    """A whole stream: hello, the spool, its batches."""
    yield pb.IngestRequest(hello=pb.Hello(protocol_version=1, shipper_id="test", host_uid="host-a"))
    yield source.open_spool()
    for batch in batches:
        yield pb.IngestRequest(batch=batch)
