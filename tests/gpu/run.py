"""Runs stages of checks on a GPU and leaves the results in one folder.

``python tests/gpu/run.py STAGE|STAGE/CHECK ... --out FOLDER [--limit-s N] [--device cpu]``; see README.md.
Exit code: 0, 1 where something failed, 2 where it could not begin.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("protos", "agent", "aggregator", "cli", "tests", "tests/support", "tests/bench")
sys.path[:0] = [str(ROOT / name) for name in SOURCES]

from gpu.checks import Place  # noqa: E402
from gpu.facts import facts  # noqa: E402
from gpu.rows import counts, read, table  # noqa: E402
from gpu.runner import Budget, Results, run_all, run_here, worst  # noqa: E402
from gpu.stages import STAGES, check_named, chosen  # noqa: E402

PACKING_S = 10.0
"""Kept for the summary and the recordings."""


def main() -> int:
    """Runs what the command line asks for."""
    arguments = _arguments()
    results = Results(folder=arguments.out.absolute())
    results.folder.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        stage, check = check_named(arguments.one)
        place = Place(device=arguments.device, folder=arguments.scratch, kept=arguments.kept)
        run_here(stage, check, place, results)
        return 0
    try:
        checks = chosen(arguments.stages or list(STAGES))
    except ValueError as error:
        print(f"Error: {error}\nTry: one of {', '.join(STAGES)}", file=sys.stderr)
        return 2
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*(str(ROOT / name) for name in SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    began = time.monotonic()
    command = shlex.join(["python", *sys.argv])
    results.summary.write_text(json.dumps(facts(command), indent=1))
    with tempfile.TemporaryDirectory(prefix="rankmem-gpu-kept-") as kept:
        budget = Budget(ends=began + arguments.limit_s - PACKING_S)
        asked = {"device": arguments.device, "jobs": arguments.jobs}
        run_all(checks, results, budget, kept=Path(kept), **asked)
        if any(Path(kept).iterdir()):
            with tarfile.open(results.recordings, "w:xz") as packed:
                packed.add(kept, arcname="recordings")
    rows = read(results.rows)
    results.table.write_text(table(rows))
    print(table(rows))
    summary = facts(command) | {"wall_s": round(time.monotonic() - began, 1), "rows": counts(rows)}
    results.summary.write_text(json.dumps(summary, indent=1))
    return worst(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; default all")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; rows are added to it")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="end by then")
    parser.add_argument("--jobs", type=int, default=1, help="checks at once, where they may be")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    for name in ("--one", "--scratch", "--kept"):  # how it starts itself for one check
        parser.add_argument(name, type=str if name == "--one" else Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
