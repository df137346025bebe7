"""Streams that no shipper opens, against a real aggregator over gRPC, beside one shipper that behaves.

Run as ``python tests/fuzz/fuzz_port.py SECONDS SEED``; prints totals as one line of JSON. Every stream ends
with a status or goes on, every batch and spool is answered, the good shipper's batches are acknowledged
throughout, and in the end its rows are there once and every question is answered.
"""

from __future__ import annotations

import json
import queue
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "support")]

import grpc

from fuzz.mutations import EXTREMES, TEXTS, mutated
from fuzz.questions import ask_everything
from ingest_client import IngestClient
from own_memory import highest_bytes
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_protos import collector_pb2 as pb
from rankmem_protos.errors import Code
from sample_batches import RankSource

REQUESTS_MAX = 12  # of one stream
RANKS = 20
ANSWER_S = 60.0
LIMIT_BYTES = 512 << 20
METHOD = "/rankmem.v1.Collector/Ingest"
CODES = {code.value for code in Code}
GOOD = "SELECT count(*) AS n, count(DISTINCT seq) AS d FROM memory_event WHERE session_id = $session"


class Fuzzer:
    """Opens streams and says how they ended."""

    def __init__(self, seed: int, address: str) -> None:
        self.rng = random.Random(seed)
        self.totals: Counter[str] = Counter()
        self._channel = grpc.insecure_channel(address)
        self._sources: list[RankSource] = []

    def step(self) -> None:
        """One stream, some of its requests damaged on the way."""
        place = self.totals["streams"] % RANKS
        self._sources = [RankSource(rank=place + n, session_id="0PORTFUZZED0") for n in (0, RANKS)]
        requests = [self._request() for _ in range(self.rng.randint(1, REQUESTS_MAX))]
        if self.rng.random() < 0.9:
            requests.insert(0, self._sources[0].open_spool())
            requests.insert(0, pb.IngestRequest(hello=pb.Hello(protocol_version=1, shipper_id="fuzz")))
        data = [request.SerializeToString() for request in requests]
        if self.rng.random() < 0.2:
            place = self.rng.randrange(len(data))
            data[place] = mutated(data[place], self.rng)
        call = self._channel.stream_stream(METHOD)(iter(data), timeout=ANSWER_S)
        self.totals["streams"] += 1
        self.totals["requests"] += len(data)
        try:
            for reply in call:
                self._take(pb.IngestReply.FromString(reply))
        except grpc.RpcError as error:
            code = error.code()  # type: ignore[attr-defined]
            self.totals[f"ended {code.name}"] += 1
            if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN):
                raise AssertionError(f"a stream ended with {code}: {error}") from error

    def _take(self, reply: pb.IngestReply) -> None:
        kind = str(reply.WhichOneof("body"))
        self.totals[kind] += 1
        if kind == "refusal":
            assert reply.refusal.code in CODES, reply
            assert reply.refusal.message, reply
            assert reply.ByteSize() < 10_000, "a long answer"

    def _request(self) -> pb.IngestRequest:
        rng, source = self.rng, self.rng.choice(self._sources)
        kind = rng.randrange(10)
        if kind < 3:
            request = source.open_spool()
            if rng.random() < 0.4:
                field = rng.choice(("spool_id", "session_id"))
                setattr(request.open_spool, field, rng.choice(TEXTS))
            if rng.random() < 0.3:
                request.open_spool.rank = rng.choice(EXTREMES) % 2**32
            return request
        if kind == 3:
            return pb.IngestRequest(clock_probe=pb.ClockProbe(sent_ns=rng.choice(EXTREMES)))
        if kind == 4:
            return rng.choice((pb.IngestRequest(), pb.IngestRequest(hello=pb.Hello(protocol_version=7))))
        batch = source.batch(rng.choice((1, 20)))
        if rng.random() < 0.3:
            batch.sequence_first = rng.choice(EXTREMES) % 2**64
        if rng.random() < 0.3:
            batch.sequence_last = rng.choice(EXTREMES) % 2**64
        if rng.random() < 0.2:
            batch.spool_id = rng.choice((rng.choice(self._sources).spool_id, *TEXTS))
        if rng.random() < 0.2:
            hurt = rng.choice(list(batch.tables))
            hurt.table = rng.choice(("memory_event", "session", "nope", *TEXTS))
        return pb.IngestRequest(batch=batch)


def sent_by(client: IngestClient, source: RankSource) -> Iterator[int]:
    """Sends a good batch each time it is asked; the last position acknowledged."""
    client.open(source)
    while True:
        batch = source.batch(20)
        client.send(batch=batch)
        assert client.acks(1) == [batch.sequence_last], "the good shipper is not served"
        yield batch.sequence_last


def main() -> None:
    """``fuzz_port.py SECONDS SEED``."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        config = AggregatorConfig(
            database_path=Path(folder) / "port.duckdb",
            listen="127.0.0.1:0",
            memory_limit_bytes=LIMIT_BYTES,
            threads=1,
            group_wait_s=0.0,
            group_interval_s=0.0,
        )
        good = RankSource(session_id="0GOODSHIPPER")
        with server.open(config) as opened, IngestClient(opened.address) as client:
            fuzzer = Fuzzer(seed, opened.address)
            acknowledged = sent_by(client, good)
            events = 0
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                fuzzer.step()
                next(acknowledged)
                events += 1
            fuzzer.totals["good batches"] = events
            with connect(opened.address) as queries:
                (row,) = queries.sql(GOOD, {"session": good.session_id}).to_pylist()
                assert row["n"] == row["d"] >= 20 * events, row
                fuzzer.totals["questions answered"] = ask_everything(queries)
    peak_mib = highest_bytes() >> 20
    print(json.dumps({**fuzzer.totals, "highest MiB": peak_mib}))


if __name__ == "__main__":
    try:
        main()
    except queue.Empty:
        raise SystemExit("Error: the aggregator did not answer the good shipper") from None
