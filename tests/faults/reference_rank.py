"""One rank of the reference run, as a process: a real spool, a real election, numbered events, a witness.

It does what the agent does in a trainer, without torch: makes the spool's folder and meta.json, elects the
shipper, writes records, looks after the shipper now and then, and ends in the way it is told. Beside the
spool it keeps a witness: a file with how many events were written for sure. Whoever kills this process at
any moment knows from the witness what must be found.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

from faults.reference import records_of
from rankmem_agent.spool import folder, layout
from rankmem_agent.spool.election import elect
from rankmem_agent.spool.layout import DeviceType, Kind
from rankmem_agent.spool.process_stat import process_start_ticks
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_agent.spool.reelection import Reelection

PACE_S = 0.01
"""Between two runs of events."""
HEARTBEAT_S = 0.05
LOOK_EVERY_S = 0.3
"""After the shipper, which is killed more often here than anywhere else."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("session_dir", type=Path)
    parser.add_argument("--witness", type=Path, required=True)
    parser.add_argument("--aggregator", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.0, help="spread the events over so long")
    parser.add_argument("--end", default="close", choices=["close", "abort", "hold"])
    parser.add_argument("--pause-at", type=int, default=-1, help="wait for SIGUSR1 after so many events")
    parser.add_argument("--budget-mib", type=int, default=512)
    parser.add_argument("--host", default="host-a")
    parser.add_argument("--skew-s", type=float, default=0.0, help="this host's clock is off by so much")
    parser.add_argument("--step-s", type=float, default=0.0, help="and jumps by so much half way through")
    parser.add_argument("--no-shipper", action="store_true")
    return parser.parse_args()


class Clock:
    """This host's wall clock: the machine's, and what a test puts on top."""

    def __init__(self, skew_s: float) -> None:
        self.skew_s = skew_s
        self._true_ns = time.time_ns

    def time_ns(self) -> int:
        return self._true_ns() + int(self.skew_s * 1e9)


class Witness:
    """How many events are written for sure, and whether the end is under way, in a file of its own."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)

    def saw(self, count: int) -> None:
        struct.pack_into("<Q", self._map, 0, count)

    def ends(self) -> None:
        struct.pack_into("<Q", self._map, 8, 1)


def begin(told: argparse.Namespace) -> PythonSpoolWriter:
    """The spool, as the agent makes it."""
    folder.make_private(told.session_dir)
    path, start = folder.create_spool(told.session_dir, attempt=told.attempt, rank=told.rank)
    writer = PythonSpoolWriter(path, told.budget_mib << 20)
    session, ticks = told.session_dir.name, process_start_ticks(os.getpid())
    spool_id = f"{session}-{told.attempt}-{told.rank}-{os.getpid()}-{ticks}" + (f"-{start}" if start else "")
    who = {"session_id": session, "attempt": told.attempt, "rank": told.rank, "spool_id": spool_id}
    now_ns = time.time_ns()
    folder.write_meta(
        path,
        {
            "version": layout.FORMAT_VERSION,
            "spool_id": spool_id,
            "aggregator": told.aggregator,
            "project_root": "/project",
            "session": {"session_id": session, "name": "reference", "world_size": told.world_size}
            | {"started_at_ns": now_ns},
            "rank": who
            | {"local_rank": told.rank, "host_uid": told.host, "pid": os.getpid()}
            | {"started_at_ns": now_ns, "world_size": told.world_size},
            "host": {"host_uid": told.host, "host_name": told.host},
            "clock": {"monotonic_ns": time.monotonic_ns(), "realtime_ns": now_ns},
        },
    )
    device = {"name": "reference", "allocator": "cpu", "source": "tap"}
    writer.record(Kind.DEVICE, device_type=DeviceType.CPU, facts=writer.intern(json.dumps(device)))
    return writer


def write(told: argparse.Namespace, writer: PythonSpoolWriter, clock: Clock, witness: Witness) -> None:
    """All events, in runs, at the pace asked for."""
    shippers = Reelection(told.session_dir, every_s=LOOK_EVERY_S)
    runs = max(1, min(told.events, int(told.seconds / PACE_S)))
    run = max(1, -(-told.events // runs))
    began_s = time.monotonic()
    for number, first in enumerate(range(0, told.events, run)):
        count = min(run, told.events - first)
        if first <= told.events // 2 < first + count:
            clock.skew_s += told.step_s
        writer.record_many(records_of(first, count, told.rank, time.monotonic_ns()).tobytes())
        witness.saw(first + count)
        if first <= told.pause_at < first + count:
            signal.sigwait({signal.SIGUSR1})
        if number % 50 == 0:
            writer.clock()
        if not told.no_shipper:
            shippers.look()
        time.sleep(max(0.0, began_s + number * told.seconds / runs - time.monotonic()))


def main() -> None:
    told = parsed()
    clock = Clock(told.skew_s)
    time.time_ns = clock.time_ns
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    writer = begin(told)
    if not told.no_shipper:
        elect(told.session_dir)
    print("begun", flush=True)
    witness = Witness(told.witness)
    write(told, writer, clock, witness)
    if told.end == "abort":
        os.abort()
    if told.end == "hold":
        while True:  # until it is killed, with a beating heart: what it holds counts as long as it lives
            writer.clock()
            time.sleep(HEARTBEAT_S)
    witness.ends()
    writer.close()


if __name__ == "__main__":
    sys.exit(main())
