"""How fast a profiler trace is imported, and in how much memory, beside HolisticTraceAnalysis' parser.

Prints CPU seconds and the highest resident memory of each, a process each, one after the other:

    python tests/bench/import_trace.py --mb 200 [--trace TRACE.json.gz] [--hta PYTHON]

Without --trace a small training is profiled on CPU and repeated until the file has that size. --hta names a
Python in which HolisticTraceAnalysis is installed; without it only ours is measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = """
import resource, sys, time
from pathlib import Path
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity
began = time.process_time()
[rank] = FORMATS["kineto"].open([Path(sys.argv[1])])
rows = sum(batch.num_rows for part in rank.parts(Identity("S", 0, 0)) for _, batch in part.rows)
mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
seconds = time.process_time() - began
print(f"rankmem: {rank.closing().events} events, {rows} rows, {seconds:.1f} s CPU, {mib:.0f} MiB")
"""
THEIRS = """
import logging, resource, sys, time
logging.disable(logging.CRITICAL)
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
began = time.process_time()
_, rows, _ = parse_trace_dataframe(sys.argv[1], ParserConfig(ParserConfig.get_minimum_args()))
mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"HTA: {len(rows)} rows, {time.process_time() - began:.1f} s CPU, {mib:.0f} MiB")
"""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--hta", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = options.trace or profiled(Path(folder))
        grown = Path(folder) / "grown.json"
        grow(source, grown, options.mb << 20)
        print(f"{grown.stat().st_size / 1e6:.0f} MB", flush=True)
        subprocess.run([sys.executable, "-c", OURS, str(grown)], check=True)
        if options.hta:
            subprocess.run([str(options.hta), "-c", THEIRS, str(grown)], check=True)


def profiled(folder: Path) -> Path:
    """A trace of three steps of a small model."""
    path = folder / "small.json"
    subprocess.run(
        [sys.executable, str(ROOT / "tests/support/profiled_training.py"), str(path), "3"], check=True
    )
    return path


def grow(source: Path, target: Path, size_bytes: int) -> None:
    """The trace again and again, each time later, at other addresses, from the totals that it left."""
    raw = source.read_bytes()
    whole = json.loads(gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw)
    events = [
        e for e in whole.pop("traceEvents") if e.get("ph") in ("X", "s", "f") or e["name"] == "[memory]"
    ]
    events = [e for e in events if e.get("cat") != "Trace"]
    span = max(e["ts"] for e in events) - min(e["ts"] for e in events) + 1000
    left: dict[Any, int] = {}
    for event in (e for e in events if e["name"] == "[memory]"):
        left[device_of(event)] = left.get(device_of(event), 0) + event["args"]["Bytes"]
    with target.open("w", encoding="utf-8") as file:
        file.write(json.dumps(whole)[:-1] + ', "traceEvents": [')
        written, turn = 0, 0
        while written < size_bytes:
            for event in events:
                line = (",\n" if written else "") + json.dumps(later(event, turn, span, left))
                written += file.write(line)
            turn += 1
        file.write("]}")


def device_of(event: dict[str, Any]) -> tuple[int, int]:
    """Whose total a memory event changes."""
    return event["args"]["Device Type"], event["args"]["Device Id"]


def later(event: dict[str, Any], turn: int, span: float, left: dict[Any, int]) -> dict[str, Any]:
    """The event in a later repetition."""
    changed = event | {"ts": event["ts"] + turn * span}
    if event["name"] == "[memory]" and "Addr" in event["args"]:
        changed["args"] = event["args"] | {
            "Addr": event["args"]["Addr"] + (turn << 36),
            "Total Allocated": event["args"]["Total Allocated"] + turn * left[device_of(event)],
        }
    return changed


if __name__ == "__main__":
    main()
