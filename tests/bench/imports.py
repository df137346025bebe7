"""How fast snapshots and timelines are imported, and in how much memory, beside what a user would do instead.

Prints a line for each: CPU seconds, highest resident memory, events a second, MB a second; a process each,
one after the other, so that ratios within one run mean something:

    python tests/bench/imports.py [--events 300000]

``rankmem import`` is the whole command into a new database: start, reading, pairing, storing, summaries.
Beside it what reads the same file: pickle.load with what torch.cuda._memory_viz makes of it (``trace_plot``
embeds the data in a page, a browser does the work; ``trace`` walks it), json.load for a timeline.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FRAMES, STACKS, DEPTH = 400, 3_000, 40
"""Frames that differ, stacks that differ, frames of each: as in the recordings of a training."""
MEASURED = """
import resource, sys, time
began = time.process_time()
{body}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(time.process_time(), usage.ru_maxrss / 1024)
"""
IMPORT = """
import contextlib, io
from rankmem_cli.main import app
said = io.StringIO()
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
    app(["import", "--db", sys.argv[2], sys.argv[1]])
"""
LOAD = "import pickle\nraw = pickle.load(open(sys.argv[1], 'rb'))\n"
RIVALS = {
    "pickle": {
        "pickle.load": LOAD,
        "pickle.load, _memory_viz trace_plot": LOAD
        + "from torch.cuda import _memory_viz\n_memory_viz.trace_plot(raw)",
        "pickle.load, _memory_viz trace": LOAD + "from torch.cuda import _memory_viz\n_memory_viz.trace(raw)",
    },
    "gz": {"gzip, json.load": "import gzip, json\nrows = json.load(gzip.open(sys.argv[1]))"},
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--snapshot", type=Path, help="a snapshot of your own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with quiet("making a snapshot"):
            snapshot = options.snapshot or made_snapshot(Path(folder, "made.pickle"), options.events)
        timeline = made_timeline(Path(folder, "made.raw.json.gz"), options.events)
        for path in (snapshot, timeline):
            print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB")
            report("rankmem import", path, IMPORT, options.events, Path(folder, f"{path.name}.duckdb"))
            for name, body in RIVALS[path.suffix.removeprefix(".")].items():
                report(name, path, body, options.events)


def report(name: str, path: Path, body: str, events: int, *arguments: Path) -> None:
    """A line of the table."""
    code = MEASURED.format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), *map(str, arguments)], capture_output=True, text=True
    )
    if done.returncode:
        print(f"  {name:40} failed: {done.stderr.strip().splitlines()[-1]}")
        return
    seconds, mib = map(float, done.stdout.split()[-2:])
    mb = path.stat().st_size / 1e6
    print(
        f"  {name:40} {seconds:6.2f} s CPU  {mib:6.0f} MiB  {events / seconds:9,.0f} events/s  "
        f"{mb / seconds:6.1f} MB/s",
        flush=True,
    )


def made_snapshot(path: Path, events: int) -> Path:
    """A snapshot with so many events, frames shared as PyTorch shares them."""
    chance = random.Random(1)
    frames = [{"name": f"f{n}", "filename": f"/job/model{n % 40}.py", "line": n} for n in range(FRAMES)]
    stacks = [[chance.choice(frames) for _ in range(DEPTH)] for _ in range(STACKS)]
    trace: list[dict[str, Any]] = []
    live: list[tuple[int, int]] = []
    free: list[int] = []
    time_us = 1_772_688_692_031_317
    while len(trace) < events:
        time_us += chance.randrange(3)
        entry = {"stream": 0, "time_us": time_us, "pool_id": (0, 0), "frames": list(chance.choice(stacks))}
        if len(live) < 2_000 or chance.random() < 0.5:
            address = free.pop() if free else (len(trace) + 1) << 20
            live.append((address, chance.randrange(1, 1 << 20)))
            trace.append({"action": "alloc", "addr": address, "size": live[-1][1], **entry})
        else:
            address, size = live.pop(chance.randrange(len(live)))
            free.append(address)
            trace += [
                {"action": action, "addr": address, "size": size, **entry}
                for action in ("free_requested", "free_completed")
            ]
    segments = [
        {
            "device": 0, "address": address, "total_size": 1 << 20, "allocated_size": size,
            "active_size": size, "requested_size": size, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
            "blocks": [
                {"address": address, "size": size, "requested_size": size, "state": "active_allocated",
                 "frames": []}
            ],
        }
        for address, size in live
    ]  # fmt: skip
    snapshot = {
        "segments": segments, "device_traces": [trace], "allocator_settings": {}, "external_annotations": [],
    }  # fmt: skip
    path.write_bytes(pickle.dumps(snapshot))
    return path


def made_timeline(path: Path, events: int) -> Path:
    """A raw timeline: blocks of a few sizes that come and go."""
    chance = random.Random(2)
    alive: list[tuple[int, int]] = []
    rows = []
    for number in range(events):
        if len(alive) < 1_000 or chance.random() < 0.5:
            alive.append((chance.randrange(1, 500) * 512, chance.randrange(8)))
            rows.append([10**18 + 700 * number, 2, *alive[-1]])
        else:
            size, category = alive.pop(chance.randrange(len(alive)))
            rows.append([10**18 + 700 * number, 4, -size, category])
    path.write_bytes(gzip.compress(json.dumps(rows).encode(), 6))
    return path


@contextmanager
def quiet(what: str) -> Iterator[None]:
    """Says on stderr what takes a moment."""
    print(f"{what} …", file=sys.stderr, flush=True)
    yield


if __name__ == "__main__":
    main()
