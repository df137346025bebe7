"""Runs every benchmark, one process each, and prints their tables: what ``make bench`` calls.

A benchmark that fails is said so and does not keep the others from running; the exit code is then 1.
A budget that is missed is a line in a table and nothing else: no test depends on how fast a machine is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

BENCHMARKS: Final = (
    "event_cost",
    "step_time",
    "ingest",
    "peak_query",
    "answers",
    "disk_bytes",
    "attribution",
    "load",
    "sustained",
    "long_run",
    "page",
    "lake",
    "insights",
)


def main() -> int:
    """``run_all.py [--quick] [--json FOLDER]``; 1 if a benchmark failed to run."""
    parser = argparse.ArgumentParser(prog="run_all", description="all benchmarks")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write NAME.json of each there")
    arguments = parser.parse_args()
    failed = [name for name in BENCHMARKS if not _ran(name, arguments.quick, arguments.json)]
    if failed:
        print(f"Error: these did not run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _ran(name: str, quick: bool, json_folder: Path | None) -> bool:
    print(f"running {name} …", file=sys.stderr, flush=True)
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py"))]
    if quick:
        command.append("--quick")
    if json_folder is not None:
        json_folder.mkdir(parents=True, exist_ok=True)
        command += ["--json", str(json_folder / f"{name}.json")]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
