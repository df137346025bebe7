"""Stage ``works``: doctor, the tap with CUDA, the demo, and the tap alone against the allocator."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpu.checks import Check, Found, Place, equal, figure
from gpu.recorded import RANKMEM, run

CUDA_CHECK: Final = Path(__file__).parents[1] / "bench" / "cuda_check.py"
WORTH_HAVING: Final = ("tap", "self test", "python stacks", "modules")
CHARS: Final = 2000


def _doctor(place: Place) -> Iterator[Found]:
    """Each of doctor's checks; those that a recording rests on must be as good as they get."""
    from rankmem_agent.tap.doctor import examine

    for each in examine():
        yield Found(what=each.name, ok=each.ok, measured=f"{each.detail} {each.hint if not each.ok else ''}")
        if each.name == "python stacks":
            yield Found(what="frames", ok="without the GIL" in each.detail, measured=each.detail)
        if each.name == "modules":
            yield Found(what="modules by frames", ok="read from" in each.detail, measured=each.detail)
        if each.name == "tap" and place.on_gpu:
            yield Found(what="tap for cuda", ok="cpu and cuda" in each.detail, measured=each.detail)


def _demo(place: Place) -> Iterator[Found]:
    """Two ranks, on one device where there is one."""
    from rankmem_aggregator import connect

    database = place.folder / "demo.duckdb"
    done = run([*RANKMEM, "demo", "--db", str(database)])
    yield equal("exit code", done.returncode, 0)
    yield figure("says", (done.stdout + done.stderr)[-CHARS:])
    with connect(database) as queries:
        rows = [row for row in queries.peak().to_pylist() if row["device_type"] == place.device]
    yield equal("ranks recorded on the device", sorted(row["rank"] for row in rows), [0, 1])
    yield equal("complete", [row["complete"] for row in rows], [True, True])
    for verb in ("peak", "ranks", "status", "ledger", "fragmentation", "diagnose"):
        said = run([*RANKMEM, verb, "--db", str(database)])
        yield Found(what=f"rankmem {verb}", ok=said.returncode in (0, 1, 2), measured=said.stdout[:CHARS])


def _tap(place: Place) -> Iterator[Found]:
    """tests/bench/cuda_check.py, whose rows are what the tests marked ``cuda`` assert."""
    done = run([sys.executable, str(CUDA_CHECK), "--json", "--rounds", "4"])
    if not done.stdout:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr[-CHARS:]}")
    for row in json.loads(done.stdout.splitlines()[-1]):
        yield Found(what=row["check"], ok=row["ok"], measured=row["detail"])


CHECKS: Final = (
    Check(name="doctor", alone=True, look=_doctor, limit_s=150),
    Check(name="tap", alone=True, look=_tap, limit_s=150, on_cpu=False),
    Check(name="demo", alone=True, look=_demo, limit_s=150),
)
