"""How fast recordings are imported, and in how much memory, beside what a user would do instead.

Prints a line for each: CPU seconds, highest resident memory, events a second, MB a second; a process each,
one after the other, so that ratios within one run mean something:

    python tests/bench/imports.py [--events 300000]

``rankmem import`` is the whole command into a new database: start, reading, pairing, storing, summaries.
Beside it what reads the same file: pickle.load with what torch.cuda._memory_viz makes of it (``trace_plot``
embeds the data in a page, a browser does the work; ``trace`` walks it), json.load for a timeline, and for
a profiler folder of an Ascend device (memory_record.csv and operator_memory.csv) Python's csv and, where it
is installed, pandas.read_csv of both files. Sizes are those of the first file.
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
import sys, time
{before}
began = time.process_time()
{body}
# Not ru_maxrss: that of a child begins with what its parent held when it forked.
highest = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.process_time() - began, int(highest.split()[1]) / 1024)
"""
READING = (
    "from pathlib import Path\n"
    "from rankmem_imports.search import search\n"
    "from rankmem_imports.recording import Identity\n",
    "[found] = search([sys.argv[1]]).found\n"
    "[rank] = found.format.open(found.files)\n"
    "rows = sum(b.num_rows for part in rank.parts(Identity('0' * 12, 0, 0)) for _, b in part.rows)\n",
)
IMPORT = """
import contextlib, io
from rankmem_cli.main import app
said = io.StringIO()
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
    app(["import", "--db", sys.argv[2], sys.argv[1]])
"""
LOAD = "import pickle\nraw = pickle.load(open(sys.argv[1], 'rb'))\n"
VIZ = "from torch.cuda import _memory_viz\n"
RIVALS = {
    "pickle": {
        "pickle.load": ("import pickle", LOAD),
        "pickle.load, _memory_viz trace_plot": (VIZ, LOAD + "_memory_viz.trace_plot(raw)"),
        "pickle.load, _memory_viz trace": (VIZ, LOAD + "_memory_viz.trace(raw)"),
    },
    "csv": {
        "csv.DictReader, both files": (
            "import csv, pathlib",
            "f = pathlib.Path(sys.argv[1]).parent\n"
            "rows = [list(csv.DictReader(p.open())) for p in f.glob('*_*.csv')]",
        ),
        "pandas.read_csv, both files": (
            "import pandas, pathlib",
            "f = pathlib.Path(sys.argv[1]).parent\nrows = [pandas.read_csv(p) for p in f.glob('*_*.csv')]",
        ),
    },
    "gz": {"gzip, json.load": ("import gzip, json", "rows = json.load(gzip.open(sys.argv[1]))")},
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
        profile = made_profile(Path(folder, "profile"), options.events)
        for path in (snapshot, timeline, profile):
            print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB")
            report("rankmem, reading to finished rows", path, READING, options.events)
            stored = Path(folder, f"{path.name}.duckdb")
            report("rankmem import, start and a new database", path, ("", IMPORT), options.events, stored)
            for name, work in RIVALS[path.suffix.removeprefix(".")].items():
                report(name, path, work, options.events)


def report(name: str, path: Path, work: tuple[str, str], events: int, *arguments: Path) -> None:
    """A line of the table; ``work``: what is not measured, and what is."""
    code = MEASURED.format(before=work[0], body=work[1])
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


def made_profile(folder: Path, events: int) -> Path:
    """A profiler folder of an Ascend device with so many records: blocks that come and go."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    from ascend_files import Story, write_csvs

    folder.mkdir()
    chance = random.Random(3)
    story = Story()
    alive = [story.malloc("aten::first", 512)]
    while len(story.records) < events:
        if len(alive) < 1_000 or chance.random() < 0.4:
            alive.append(story.malloc(f"aten::op{chance.randrange(60)}", 512 * chance.randrange(1, 4_000)))
        else:
            story.free(alive.pop(chance.randrange(len(alive))))
        if chance.random() < 0.05:
            story.ge_free(story.ge_malloc(f"Conv2D{chance.randrange(20)}", 512 * chance.randrange(1, 40_000)))
    write_csvs(story, folder)
    return folder / "memory_record.csv"


@contextmanager
def quiet(what: str) -> Iterator[None]:
    """Says on stderr what takes a moment."""
    print(f"{what} …", file=sys.stderr, flush=True)
    yield


if __name__ == "__main__":
    main()
