"""A sender without pairing: streams batches from a file to an aggregator as fast as it acknowledges.

Stage: in the place of a shipper, in a process of its own. The file holds Batch messages, each behind its
length (u32). Says ``ready`` when the stream is open, waits for a line on stdin, sends with at most
:data:`WINDOW` batches unacknowledged, and ends when all are acknowledged.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from rankmem_protos.collector_pb2 import Batch, Hello, IngestReply, IngestRequest, OpenSpool
from rankmem_protos.collector_pb2_grpc import CollectorStub
from rankmem_protos.sealing import seal, unseal

WINDOW: Final = 16
PLAIN: Final = bool(os.environ.get("RANKMEM_BENCH_PLAIN"))
"""Without checksums, as older shippers, to see what they cost."""


def sealed(request: IngestRequest) -> IngestRequest:
    """As it goes out."""
    return request if PLAIN else seal(request)


def unsealed(reply: IngestReply) -> IngestReply:
    """As it came in."""
    return reply if PLAIN else unseal(reply, must=True)


def batches_in(path: Path) -> Iterator[Batch]:
    """The messages of a file that :func:`write_batches` wrote."""
    data = memoryview(path.read_bytes())
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        yield Batch.FromString(bytes(data[at + 4 : at + 4 + length]))
        at += 4 + length


def write_batches(path: Path, batches: Iterator[Batch]) -> None:
    """Writes messages for :func:`batches_in`."""
    with path.open("wb") as file:
        for batch in batches:
            text = batch.SerializeToString()
            file.write(struct.pack("<I", len(text)) + text)


def main() -> None:
    """``raw_sender.py FILE ADDRESS SPOOL SESSION RANK``."""
    path, address, spool_id, session_id, rank = sys.argv[1:]
    batches = list(batches_in(Path(path)))
    free = threading.Semaphore(WINDOW)
    go, over = threading.Event(), threading.Event()

    def requests() -> Iterator[IngestRequest]:
        hello = Hello(protocol_version=1, shipper_id=spool_id, host_uid=f"host-{rank}", checksums=not PLAIN)
        yield IngestRequest(hello=hello)
        yield sealed(
            IngestRequest(
                open_spool=OpenSpool(spool_id=spool_id, session_id=session_id, attempt=0, rank=int(rank))
            )
        )
        go.wait()
        for number, batch in enumerate(batches):
            free.acquire()
            batch.batch_number = number
            yield sealed(IngestRequest(batch=batch))
        over.wait()

    with grpc.insecure_channel(address) as channel:
        acknowledged = 0
        for reply in map(unsealed, CollectorStub(channel).Ingest(requests())):
            kind = reply.WhichOneof("body")
            if kind == "spool_state":
                print("ready", flush=True)
                threading.Thread(target=lambda: (sys.stdin.readline(), go.set()), daemon=True).start()
            elif kind == "ack":
                acknowledged += 1
                free.release()
                if acknowledged == len(batches):
                    break
            elif kind == "refusal":
                raise SystemExit(f"Error: {reply.refusal.message}\nTry: {reply.refusal.hint}")
        over.set()


if __name__ == "__main__":
    main()
