"""Many hosts in one process: each with its rank, its spool, and a shipper with a stream of its own.

Stage: outside the way of the data, a child of ``load.py``. The shippers are the agent's own
(:class:`rankmem_ship.shipper.Shipper`), driven by one loop in the place of a process each. Says
``ready`` when every rank's spool is open at the aggregator (or at once, if told to wait for nobody), waits
for a line, writes for the time that it was told, and ends when all is acknowledged. A line of JSON a rank
goes to the file that it was given.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[1] / "support"))

from live_ranks import LiveRank, Template, make_template

from rankmem_protos.collector_pb2 import IngestReply
from rankmem_ship.config import ShipConfig
from rankmem_ship.encoding import EncodedBatch
from rankmem_ship.shipper import Shipper
from rankmem_ship.spool_upload import UploadState
from spool_synthetic import CALL_EVENTS, CALL_RECORDS

SESSION: Final = "0BENCHLOADED"
TICK_S: Final = 0.5  # a rank's records of so long are written at once
STEP_S: Final = 0.1  # between two looks of one shipper
SPOOL_BYTES: Final = 64 << 20
OPEN_S: Final = 120.0  # for all streams to be welcomed
DRAIN_S: Final = 300.0  # for all to be acknowledged after the end


@dataclass(slots=True, kw_only=True)
class Told:
    """What became of one rank."""

    rank: int
    events: int = 0
    dropped: int = 0
    delays_s: list[float] = field(default_factory=list)
    """Of each batch, from its sending to its acknowledgement."""
    acknowledged_s: list[float] = field(default_factory=list)
    """When that was, CLOCK_MONOTONIC."""
    num_busy: int = 0
    """Words of the aggregator that batches have to wait."""
    num_streams_lost: int = 0
    is_delivered: bool = False


class MeasuredShipper(Shipper):
    """The shipper, with a clock on every batch."""

    def __init__(self, session_dir: Path, config: ShipConfig, told: Told) -> None:
        super().__init__(session_dir, config)
        self._told = told
        self._sent_s: dict[int, float] = {}

    @property
    def is_open(self) -> bool:
        """Whether the aggregator has said how far every spool is."""
        return bool(self.uploads) and all(
            upload.state is UploadState.READY for upload in self.uploads.values()
        )

    def _send_batch(self, batch: EncodedBatch) -> None:
        super()._send_batch(batch)
        self._sent_s[batch.message.sequence_last] = time.monotonic()

    def _take_reply(self, reply: IngestReply) -> None:
        body = reply.WhichOneof("body")
        if body == "ack":
            now_s = time.monotonic()
            sent_s = self._sent_s.pop(reply.ack.last_sequence, None)
            if sent_s is not None:
                self._told.delays_s.append(now_s - sent_s)
                self._told.acknowledged_s.append(now_s)
        elif body == "busy":
            self._told.num_busy += 1
        super()._take_reply(reply)


@dataclass(slots=True, kw_only=True)
class Host:
    """One host: a rank and its shipper."""

    rank: LiveRank
    shipper: MeasuredShipper
    told: Told
    due_s: float = 0.0
    stepped_s: float = 0.0


def main() -> None:
    """``load_hosts.py FOLDER ADDRESS FIRST COUNT EVENTS_PER_S SECONDS OUT connected|alone``."""
    folder, address, first, count, rate, seconds, out, beginning = sys.argv[1:]
    root = Path(tempfile.mkdtemp(dir=folder))
    template = make_template(root / "template", SESSION, address)
    numbers = range(int(first), int(first) + int(count))
    hosts = [_host(root, template, number, address) for number in numbers]
    if beginning == "connected":
        _until(hosts, lambda: all(host.shipper.is_open for host in hosts), OPEN_S, "open")
    print("ready", flush=True)
    sys.stdin.readline()
    _write(hosts, float(rate), float(seconds))
    for host in hosts:
        host.told.events, host.told.dropped = host.rank.events, host.rank.writer.dropped
        host.rank.writer.close()
    _until(hosts, lambda: all(host.shipper.is_done for host in hosts), DRAIN_S, "delivered")
    with Path(out).open("w") as file:
        for host in hosts:
            host.told.is_delivered = bool(host.shipper.num_delivered) and not host.shipper.failures
            host.told.num_streams_lost = host.shipper.sender.num_failures if host.shipper.sender else 0
            file.write(json.dumps(asdict(host.told)) + "\n")
            host.shipper.close("done")


def _host(root: Path, template: Template, number: int, address: str) -> Host:
    session_dir = root / f"host-{number}" / SESSION
    session_dir.mkdir(parents=True, mode=0o700)
    spool = session_dir / f"0-{number}-{os.getpid()}"
    rank = LiveRank(
        template=template, folder=spool, rank=number, spool_bytes=SPOOL_BYTES, host_uid=f"host-{number}"
    )
    told = Told(rank=number)
    return Host(
        rank=rank, shipper=MeasuredShipper(session_dir, ShipConfig(aggregator=address), told), told=told
    )


def _write(hosts: list[Host], rate: float, seconds: float) -> None:
    """All ranks at the rate together, each in its own time of the tick."""
    began_s = time.monotonic()
    per_tick = max(1, round(rate * TICK_S / CALL_EVENTS)) * CALL_RECORDS
    for number, host in enumerate(hosts):
        host.due_s = began_s + TICK_S * number / len(hosts)
    while (now_s := time.monotonic()) < began_s + seconds:
        for host in hosts:
            if now_s >= host.due_s:
                # A tick that comes late is as large as the time it took.
                ticks = 1 + int((now_s - host.due_s) / TICK_S)
                host.rank.write(per_tick * ticks)
                host.due_s += ticks * TICK_S
        _step(hosts)


def _until(hosts: list[Host], is_over: Callable[[], bool], timeout_s: float, what: str) -> None:
    until_s = time.monotonic() + timeout_s
    while not is_over():
        if time.monotonic() > until_s:
            errors = {host.shipper.error for host in hosts} - {""}
            raise SystemExit(f"Error: not all {what} in {timeout_s:.0f} s: {sorted(errors)[:3]}")
        _step(hosts)


def _step(hosts: list[Host]) -> None:
    """Every shipper whose time has come; then a rest, if there was little to do."""
    began_s = time.monotonic()
    for host in hosts:
        if began_s - host.stepped_s >= STEP_S:
            host.stepped_s = began_s
            host.shipper.step()
    if time.monotonic() - began_s < STEP_S / 10:
        time.sleep(STEP_S / 20)


if __name__ == "__main__":
    main()
