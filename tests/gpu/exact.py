"""Stage ``exact``: stored events, peaks and blocks against the allocator's own history and figures.

The history runs beside the tap in the recorded process itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from gpu import exactly
from gpu.checks import Check, Found, Place, equal, figure, not_tried, within
from gpu.recorded import (
    DEVICES,
    EVENTS,
    GAPS,
    RANKMEM,
    SAMPLES,
    STEPS_ON_CPU,
    Recorded,
    events_of,
    record,
    run,
)

MIB: Final = 1 << 20
Judge = Callable[[list[tuple[Any, ...]]], list[Found]]
PINNED: Final = """
SELECT max(reserved_bytes) AS held, max(active_bytes) AS used FROM component_sample
WHERE component = 'pinned_host'
"""
LAST_PINNED: Final = """
SELECT reserved_bytes, active_bytes FROM component_sample
WHERE component = 'pinned_host' AND time_ns <= $until_ns ORDER BY seq DESC LIMIT 1
"""
"""As torch was asked: the sample at the process's end comes after the training gave its tensors back."""
CALLS: Final = 40
LATE_STEP: Final = 16
"""In which ``caught_late`` asks for too much."""
STEPS: Final = "SELECT optimizer, count(*) AS steps FROM step GROUP BY optimizer"
PART: Final = Path(__file__).with_name("part.py")
OLDER: Final = """
SELECT sum(size_bytes)::BIGINT AS bytes FROM allocation WHERE device = $device AND allocation_id < 0
"""
OOM_PLACES: Final = """
SELECT o.operator, module, step, file_path, line_number FROM oom AS o
LEFT JOIN operator_call AS c USING (session_id, attempt, rank, call_id)
LEFT JOIN stack_frame AS f ON f.stack_id = o.stack_id AND f.ordering = 0
"""
NAMED_STEPS: Final = """
SELECT DISTINCT step FROM allocation
WHERE device = $device AND operator IS NOT NULL AND step IS NOT NULL ORDER BY step
"""
CHANGES: Final = "SELECT outcome, detail, step FROM control_change ORDER BY seq"
OOMS: Final = "SELECT size_bytes, device_free_bytes, operator FROM oom ORDER BY rank, seq"
AWAY_SHARE: Final = 0.01
"""Of the driver's figure: samples are a second old."""
UNEXPLAINED_SHARE: Final = 0.05


def exact_found(recording: Recorded, place: Place, more: Judge | None = None) -> Iterator[Found]:
    """Everything that is compared of any recording."""
    with recording.queries() as queries:
        (row,) = [each for each in queries.peak().to_pylist() if each["device_type"] == place.device]
        rows = events_of(queries, row["device"])
        gaps = queries.sql(GAPS).to_pylist()
    yield Found(what="gaps", ok=not gaps, measured=gaps)
    yield figure("events", len(rows))
    if not place.on_gpu:
        yield not_tried("the allocator's history", "a CPU's allocator keeps none")
        return
    yield from exactly.judge_events(rows, recording.told["events"])
    yield from exactly.judge_peaks(row, recording.told)
    yield from exactly.judge_end(rows, recording.told)
    if more is not None:
        yield from more(rows)


def _trained(
    workload: str, *arguments: str, settings: str = "", more: Judge | None = None
) -> Callable[[Place], Iterator[Found]]:
    def look(place: Place) -> Iterator[Found]:
        recording = record(place, workload, workload, "--history", *arguments, settings=settings)
        yield from exact_found(recording, place, more)

    return look


def _gpt(place: Place) -> Iterator[Found]:
    recording = record(place, "gpt", "gpt", "--history", "--steps", "6", "--batch", "4")
    yield from exact_found(recording, place)
    yield from groups_found(recording)
    yield from _beside_driver(recording, place)


def _inference(place: Place) -> Iterator[Found]:
    """Each call of the model is a step."""
    recording = record(place, "inference", "inference", "--history", "--steps", str(CALLS), "--batch", "1")
    yield from exact_found(recording, place)
    yield from groups_found(recording)
    with recording.queries() as queries:
        ended = queries.sql(STEPS).to_pylist()
    steps = CALLS if place.on_gpu else STEPS_ON_CPU
    yield equal("steps", ended, [{"optimizer": "model call", "steps": steps}])


def _part(place: Place) -> Iterator[Found]:
    """``rankmem.record()`` in a process whose device holds blocks already."""
    database, out = place.folder / "part.duckdb", place.folder / "part.json"
    given = ["--device", place.device, "--db", str(database), "--out", str(out)]
    done = run([sys.executable, str(PART), *given])
    if done.returncode:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr[-3000:]}")
    told = json.loads(out.read_text())
    yield figure("rankmem.peak()", told["peak"])
    recording = Recorded(database=database, told=told, stderr=done.stderr, returncode=0)
    yield from groups_found(recording)
    with recording.queries() as queries:
        (row,) = [each for each in queries.peak().to_pylist() if each["device_type"] == place.device]
        rows = events_of(queries, row["device"])
        older = queries.sql(OLDER, {"device": row["device"]}).to_pylist()[0]["bytes"]
    if place.on_gpu:
        yield equal("bytes that are older", older, told["before"])
        yield from exactly.judge_events(rows, told["events"])
        yield from exactly.judge_peaks(row, told)


def _auto(place: Place) -> Iterator[Found]:
    """``--detail auto``: an out-of-memory in a step recorded in summary, and the steps after it."""
    given = ("--history", "--batch", "2", "--steps", "24")
    recording = record(place, "caught_late", "auto", *given, options=("--detail", "auto"))
    yield from exact_found(recording, place)
    with recording.queries() as queries:
        places = queries.sql(OOM_PLACES).to_pylist()
        named = [row["step"] for row in queries.sql(NAMED_STEPS, {"device": "cuda:0"}).to_pylist()]
        yield figure("changes", queries.sql(CHANGES).to_pylist())
    if place.on_gpu:
        late = LATE_STEP - 1
        (at,) = places or [{}]
        found = [at.get(key) for key in ("operator", "module", "step")]
        yield equal("operator, module, step", found, ["aten::empty", "_Asks", late])
        yield Found(what="line", ok="workloads.py" in (at.get("file_path") or ""), measured=at)
        yield Found(
            what="steps with operators", ok={0, late + 1, late + 2} <= set(named) and late not in named,
            measured=named,
        )  # fmt: skip


def groups_found(recording: Recorded) -> Iterator[Found]:
    """Every grouping of the peak adds up to it."""
    with recording.queries() as queries:
        for by in ("category", "operator", "module", "line", "phase", "stream"):
            rows = [each for each in queries.peak_by(by=by).to_pylist() if not each.get("is_sampled")]
            device, peak = max(((each["device"], each["rank_peak_bytes"]) for each in rows), key=_second)
            total = sum(each["bytes_at_rank_peak"] or 0 for each in rows if each["device"] == device)
            yield equal(f"by {by} adds up", total, peak)


def _second(pair: tuple[str, int]) -> int:
    return pair[1]


def _beside_driver(recording: Recorded, place: Place) -> Iterator[Found]:
    """Samples and the ledger against the driver's own figures at the end."""
    if not place.on_gpu:
        return
    driver = recording.told["driver"]
    with recording.queries() as queries:
        samples = queries.sql(SAMPLES, {"device": "cuda:0"}).to_pylist()
        ledger = queries.ledger()
    yield Found(what="samples", ok=bool(samples), measured=len(samples))
    for what, name in (("used", "device_used_bytes"), ("own", "app_reserved_bytes")):
        last = samples[-1][name] if samples else None
        if driver[what] is None or last is None:
            yield not_tried(f"driver: {what}", f"driver {driver[what]}, ours {last}")
        else:
            yield within(f"driver: {what}, away", abs(last - driver[what]) / driver[what], AWAY_SHARE)
    yield from ledger_found(ledger)


def ledger_found(ledger: Any) -> Iterator[Found]:
    """The ledger's sentence, its parts, and how much of what is used it does not explain."""
    rows = ledger.rows.to_pylist()
    yield figure("ledger", ledger.sentence)
    yield figure("ledger: parts", {f"{row['part']} {row['rank']}": row["bytes"] for row in rows})
    shares = [row["share"] for row in rows if row["part"] == "unexplained" and row["share"] is not None]
    yield within("ledger: unexplained share", sum(shares) if shares else float("nan"), UNEXPLAINED_SHARE)


def _pinned(place: Place) -> Iterator[Found]:
    recording = record(place, "pinned", "pinned", "--history", "--steps", "8")
    yield from exact_found(recording, place)
    said = recording.told["pinned"]
    with recording.queries() as queries:
        until_ns = int(recording.told["ended_s"] * 1e9)
        rows = queries.sql(LAST_PINNED, {"until_ns": until_ns}).to_pylist()
    if not said:
        yield not_tried("pinned", "this torch has no host_memory_stats()")
        return
    last = rows[0] if rows else {"reserved_bytes": None, "active_bytes": None}
    yield equal("pinned bytes held", last["reserved_bytes"], said.get("allocated_bytes.current"))
    if last["active_bytes"] is None:  # before 2.13: see tap_pinned.cpp
        told = f"torch says {said.get('active_bytes.current')}, with blocks that are done"
        yield not_tried("pinned bytes in use", told)
    else:
        yield equal("pinned bytes in use", last["active_bytes"], said.get("active_bytes.current"))


def _out_of_memory(place: Place) -> Iterator[Found]:
    """A device that is filled until a request fails and the training ends with it."""
    small = ("--batch", "2", "--steps", "200", "--history")
    recording = record(place, "full", "full", *small, fails=True)
    yield from exact_found(recording, place)
    with recording.queries() as queries:
        ooms = queries.sql(OOMS).to_pylist()
        why = queries.why_oom()
    yield Found(what="failures", ok=len(ooms) == 1, measured=ooms)
    yield Found(what="why", ok=why.verdict != "cannot tell", measured=why.sentence)
    said = run([*RANKMEM, "oom", "--db", str(recording.database)])
    yield Found(what="rankmem oom", ok=said.returncode in (0, 1), measured=said.stdout[:2000])
    yield Found(
        what="the training's own error", ok="OutOfMemoryError" in recording.stderr,
        measured=recording.returncode,
    )  # fmt: skip


def _async(place: Place) -> Iterator[Found]:
    """cudaMallocAsync reports no events: samples, and it is said."""
    recording = record(place, "gpt", "async", settings="backend:cudaMallocAsync")
    with recording.queries() as queries:
        devices = queries.sql(DEVICES).to_pylist()
        samples = queries.sql(SAMPLES, {"device": "cuda:0"}).to_pylist()
        gaps = queries.sql(GAPS).to_pylist()
        events = queries.sql(EVENTS, {"rank": 0, "device": "cuda:0"}).num_rows
    facts = [(each["source"], each["allocator"]) for each in devices if each["device"] == "cuda:0"]
    yield equal("source and allocator", facts, [("samples", "cudaMallocAsync")])
    yield equal("events", events, 0)
    yield Found(what="samples", ok=bool(samples), measured=samples[-1:])
    yield Found(what="said as missing", ok=any(g["why"] == "device_off" for g in gaps), measured=gaps)
    yield Found(
        what="said on stderr", ok="only samples" in recording.stderr, measured=recording.stderr[-300:]
    )


def _two(place: Place) -> Iterator[Found]:
    """Two ranks on one GPU."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    recording = record(place, "gpt", "two", "--steps", "20", "--batch", "2", launcher=torchrun)
    told = [
        json.loads((place.folder / f"two.json.{rank}").read_text()) for rank in range(2)
    ]  # each rank its own
    with recording.queries() as queries:
        peaks = {
            each["rank"]: each
            for each in queries.peak().to_pylist()
            if each["device_type"] == place.device and each["is_rank_peak"]
        }
        ledger = queries.ledger()
        last = queries.sql(
            "SELECT rank, last(app_reserved_bytes ORDER BY seq) AS own FROM process_sample "
            "WHERE device = 'cuda:0' GROUP BY rank ORDER BY rank"
        ).to_pylist()
    yield equal("ranks", sorted(peaks), [0, 1])
    if not place.on_gpu:
        return
    for rank, mine in enumerate(told):
        for found in exactly.judge_peaks(peaks[rank], mine):
            yield Found(what=f"rank {rank}: {found.what}", ok=found.ok, measured=found.measured)
        own = next((each["own"] for each in last if each["rank"] == rank), None)
        if own is None or mine["driver"]["own"] is None:
            yield not_tried(f"rank {rank}: driver", f"driver {mine['driver']['own']}, ours {own}")
        else:
            away = abs(own - mine["driver"]["own"]) / mine["driver"]["own"]
            yield within(f"rank {rank}: driver, away", away, AWAY_SHARE)
    yield from ledger_found(ledger)


def _nccl(place: Place) -> Iterator[Found]:
    """NCCL with a world of one: what it holds is beyond the allocator."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    recording = record(place, "gpt", "nccl", "--nccl", "--steps", "10", launcher=torchrun)
    told = json.loads((place.folder / "nccl.json.0").read_text())
    with recording.queries() as queries:
        (row,) = [each for each in queries.peak().to_pylist() if each["device_type"] == "cuda"]
        ledger = queries.ledger()
    yield from exactly.judge_peaks(row, told)
    yield from ledger_found(ledger)


EXPANDABLE: Final = "expandable_segments:True"
CHECKS: Final = (
    Check(name="gpt", alone=True, look=_gpt, limit_s=100),
    Check(name="resnet", look=_trained("resnet", "--steps", "6", "--batch", "32"), limit_s=100),
    Check(name="oom", alone=True, look=_out_of_memory, limit_s=100, on_cpu=False),
    Check(name="oom_caught", look=_trained("caught", "--batch", "2"), limit_s=70),
    Check(
        name="expandable",
        look=_trained("churn", settings=EXPANDABLE, more=exactly.judge_mapped),
        limit_s=70,
    ),
    Check(
        name="streams",
        look=_trained("streams", "--steps", "40", more=exactly.judge_streams),
        limit_s=70,
        on_cpu=False,
    ),
    Check(
        name="graph", look=_trained("graphs", more=exactly.judge_pools), limit_s=70, on_cpu=False
    ),
    Check(name="pinned", look=_pinned, limit_s=70, on_cpu=False),
    Check(name="inference", look=_inference, limit_s=70),
    Check(name="part", look=_part, limit_s=80),
    Check(name="auto", look=_auto, limit_s=80),
    Check(name="two_processes", alone=True, look=_two, limit_s=120),
    Check(name="async", alone=True, look=_async, limit_s=70, on_cpu=False),
    Check(name="nccl", alone=True, look=_nccl, limit_s=90, on_cpu=False),
    Check(name="compile", look=_trained("compiled", "--batch", "4"), limit_s=150),
    Check(
        name="compile_graphs",
        look=_trained("compiled_graphs", "--batch", "4", more=exactly.judge_pools),
        limit_s=180,
        on_cpu=False,
    ),
)  # fmt: skip
