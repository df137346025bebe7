"""Stage ``history``: without a compiler torch's own history is drained; what is equal, lost and said."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Final

from gpu import exactly
from gpu.checks import Check, Found, Place, equal, figure
from gpu.cost import judge_ratio
from gpu.recorded import DEVICES, FACTS, GAPS, events_of, record, run, training


def _drained(workload: str, *arguments: str) -> Callable[[Place], Iterator[Found]]:
    def look(place: Place) -> Iterator[Found]:
        nothing = place.folder / "no-taps"
        nothing.mkdir()
        env = {"CXX": "/bin/false", "RANKMEM_TAP_CACHE": str(nothing)}
        recording = record(place, workload, workload, "--figures", *arguments, env=env)
        with recording.queries() as queries:
            (row,) = [each for each in queries.peak().to_pylist() if each["device_type"] == "cuda"]
            devices = queries.sql(DEVICES).to_pylist()
            gaps = queries.sql(GAPS).to_pylist()
            (rank,) = queries.sql(FACTS).to_pylist()
            events = events_of(queries, row["device"])
        sources = [each["source"] for each in devices if each["device"] == row["device"]]
        yield equal("source", sources, ["snapshot"])
        yield from exactly.judge_peaks(row, recording.told)
        yield exactly.judge_course(events, recording.told)
        known = sum(each[6] is not None and each[8] is not None for each in events)
        yield equal("events with allocated and active bytes", known, len(events))
        yield figure("gaps", gaps)
        yield figure("lost and unexplained", [rank["events_lost"], rank["unexplained_bytes"]])
        yield figure("said", [line for line in recording.stderr.splitlines() if "rankmem" in line][:8])
        out = place.folder / "plain.json"
        run([sys.executable, *training(place, workload, out, *arguments)])
        plain = json.loads(out.read_text())
        on, off = (told["steps_s"][5:] for told in (recording.told, plain))
        yield from judge_ratio("step with the history drained / plain", on, off, at_most=None)
        yield figure("longest step, ms", [round(1e3 * max(each), 1) for each in (on, off)])
        yield figure("mean step, ms", [round(1e3 * statistics.mean(each), 2) for each in (on, off)])

    return look


CHECKS: Final = (
    Check(name="gpt", alone=True, look=_drained("gpt", "--steps", "40"), limit_s=120, on_cpu=False),
    Check(name="chain", alone=True, look=_drained("chain", "--steps", "300"), limit_s=120, on_cpu=False),
)
