"""Checks the tap on a real CUDA device and prints a table: exactness, stacks, streams, OOM, what it costs.

Run as is on a machine with a GPU: ``python tests/bench/cuda_check.py [--json] [--batch 8] [--rounds 6]``.
Needs torch with CUDA and a C++ compiler; nothing else of the project's dependencies. The oracle is the
allocator's own history (``_snapshot()``) and ``memory_stats()``, recorded in the same process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("agent", "protos", "tests/support")]

import torch  # noqa: E402

from rankmem_agent.spool.layout import Action, DeviceType, Kind  # noqa: E402
from rankmem_agent.tap.build import ensure_built  # noqa: E402
from rankmem_agent.tap.library import Tap, What  # noqa: E402
from rankmem_agent.tap.snapshot_format import events_of  # noqa: E402
from spool_bytes import records_of, texts_of  # noqa: E402

SPOOL_BYTES = 1 << 30
WARM_STEPS = 5
STEPS_A_ROUND = 10
HISTORY_ENTRIES = 2_000_000

Record = dict[str, int]
Row = tuple[str, bool, str]


class Gpt(torch.nn.Module):
    """About 110 M parameters: 12 layers of width 768, a vocabulary of 32,000."""

    def __init__(self, layers: int = 12, width: int = 768, vocabulary: int = 32_000) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        layer = torch.nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))  # type: ignore[no-any-return]


def make_step(batch: int) -> Callable[[], None]:
    """A training step of the model on the device."""
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 32_000, (batch, 513), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step


def odd_corners() -> str:
    """A second stream, a CUDA graph's pool, an emptied cache, an out-of-memory; the stream's handle."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kept = [torch.empty(1 << 20, device="cuda") for _ in range(8)]
    for tensor in kept:
        tensor.record_stream(torch.cuda.current_stream())
    del kept, tensor
    graph, static = torch.cuda.CUDAGraph(), torch.ones(1 << 16, device="cuda")
    with torch.cuda.graph(graph):
        result = static * 2 + 1
    graph.replay()
    torch.cuda.synchronize()
    del result
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    return str(stream.cuda_stream)


def median_ms(step: Callable[[], None], count: int = STEPS_A_ROUND) -> float:
    """Milliseconds a step, the device waited for."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / count


def costs(tap: Tap, step: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Median milliseconds a step with the tap on and off, in turns."""
    both = What.CUDA_EVENTS | What.CALLS | What.STACKS
    on, off = [], []
    for _ in range(rounds):
        tap.enable(both, False)
        off.append(median_ms(step))
        tap.enable(both, True)
        on.append(median_ms(step))
    return statistics.median(on), statistics.median(off)


def judge_events(records: list[Record], trace: list[dict[str, Any]]) -> Row:
    """The tap's events against the allocator's history after the snapshot that the tap took."""
    history = events_of(trace)
    start = next(at for at, event in enumerate(history) if event.action is Action.SNAPSHOT)
    knows_pool = any(event.pool for event in history)
    expected = [
        (
            int(e.action), e.address, e.size_bytes, e.stream,
            (e.device_free_bytes or 0) if e.action is Action.OOM else e.pool,
        )
        for e in history[start + 1 :]
    ]  # fmt: skip
    seen = [
        (r["action"], r["a"], r["b"], r["c"], r["d"] if knows_pool or r["action"] == Action.OOM else 0)
        for r in records
        if r["kind"] == Kind.EVENT
    ]
    differ = next((at for at, (a, b) in enumerate(zip(seen, expected, strict=False)) if a != b), None)
    text = f"{len(seen)} events, {len(expected)} in the allocator's history"
    if differ is not None:
        text += f"; first differs at {differ}: {seen[differ]} for {expected[differ]}"
    return "events equal _snapshot()", seen == expected and bool(seen), text


def judge_counters(records: list[Record], stats: dict[str, Any]) -> list[Row]:
    """The replay and the last COUNTERS and PEAKS against memory_stats()."""
    live: dict[int, int] = {}
    for r in records:
        if r["kind"] in (Kind.EVENT, Kind.PREEXISTING) and r["action"] == Action.ALLOC:
            live[r["a"]] = r["b"]
        elif r["kind"] == Kind.EVENT and r["action"] == Action.FREE_COMPLETED:
            live.pop(r["a"], None)
    names = ("allocated", "active", "reserved", "requested")
    rows: list[Row] = []
    requested = stats["requested_bytes.all.current"]
    rows.append(
        ("replayed requested bytes", sum(live.values()) == requested, f"{sum(live.values())} of {requested}")
    )
    for kind, which in ((Kind.COUNTERS, "current"), (Kind.PEAKS, "peak")):
        last = [r for r in records if r["kind"] == kind][-1:]
        ours = [last[0][field] for field in "abcd"] if last else []
        theirs = [stats[f"{name}_bytes.all.{which}"] for name in names]
        rows.append((f"{kind.name} equal memory_stats()", ours == theirs, f"{ours} for {theirs}"))
    return rows


def judge_rest(records: list[Record], texts: dict[int, str], stream: str) -> list[Row]:
    """Stacks, streams, pools, OOM, facts, samples."""
    events = [r for r in records if r["kind"] == Kind.EVENT]
    begins = {r["call_id"]: r["e"] for r in records if r["kind"] == Kind.CALL_BEGIN}
    ends = {r["call_id"]: r["e"] for r in records if r["kind"] == Kind.CALL_END}
    allocating = {r["call_id"] for r in events if r["action"] == Action.ALLOC and r["call_id"]}
    stacked = sum(ends.get(call, 0) != 0 for call in allocating)
    unnamed = sum(r["action"] == Action.ALLOC and not r["call_id"] for r in events)
    top = Counter(texts.get(begins.get(call, 0), "?") for call in allocating).most_common(3)
    streams, pools = (
        Counter(r["c"] for r in events),
        Counter(r["d"] for r in events if r["action"] == Action.ALLOC),
    )
    ooms = [r for r in events if r["action"] == Action.OOM]
    facts = [texts[r["e"]] for r in records if r["kind"] == Kind.DEVICE and r["e"] in texts]
    samples = [r for r in records if r["kind"] == Kind.SAMPLE]
    sample = f"{len(samples)}; last: app {samples[-1]['a']}, used {samples[-1]['b']}" if samples else "none"
    return [
        ("calls with a Python stack", stacked > 0, f"{stacked} of {len(allocating)}; top: {top}"),
        ("allocations outside of calls", True, str(unnamed)),
        ("the other stream is seen", streams[int(stream)] > 0, f"{streams[int(stream)]} events there"),
        ("private pools are seen", len(pools) > 1, f"{len(pools) - 1} (torch 2.6 tells none)"),
        ("out-of-memory", len(ooms) == 1, str([(r["b"], r["d"]) for r in ooms])),
        ("facts of the device", bool(facts) and json.loads(facts[-1])["uuid"] != "", "; ".join(facts)),
        ("samples by NVML", bool(samples), sample),
    ]  # fmt: skip


def check(batch: int, rounds: int, folder: Path) -> list[Row]:
    """Runs everything; the rows of the table."""
    step = make_step(batch)
    for _ in range(WARM_STEPS):
        step()
    untouched = statistics.median(median_ms(step) for _ in range(rounds))
    built = ensure_built()
    if not built.has_cuda:
        return [("tap built with CUDA", False, built.cuda_missing)]
    rows: list[Row] = [("tap built with CUDA", True, f"{built.compiled_s:.1f} s, torch {torch.__version__}")]
    torch.cuda.memory._record_memory_history(context=None, max_entries=HISTORY_ENTRIES)
    tap = Tap(built.path)
    tap.open(folder, SPOOL_BYTES)
    tap.attach_calls()
    tap.enable(What.CALLS | What.STACKS)
    began = time.perf_counter()
    tap.attach_cuda()
    rows.append(("attach", True, f"{(time.perf_counter() - began) * 1e3:.1f} ms"))
    for _ in range(STEPS_A_ROUND):
        step()
    stream = odd_corners()
    torch.cuda.synchronize()
    time.sleep(1.5)  # two samples
    return rows + finish(tap, step, rounds, folder, stream, untouched)


def finish(
    tap: Tap, step: Callable[[], None], rounds: int, folder: Path, stream: str, untouched: float
) -> list[Row]:
    """Judges what was recorded, then measures what recording costs (without the allocator's own history)."""
    stats = torch.cuda.memory_stats()
    tap.cuda_counters()
    tap.enable(What.CUDA_EVENTS, False)
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    cuda = int(DeviceType.CUDA)
    everything = [record for _, record in sorted(records_of(folder).items())]
    records = [
        r for r in everything if r["device_type"] == cuda or r["kind"] in (Kind.CALL_BEGIN, Kind.CALL_END)
    ]
    rows = [judge_events(records, trace), *judge_counters(records, stats)]
    rows += judge_rest(records, texts_of(folder), stream)
    on, off = costs(tap, step, rounds)
    tap.close()
    rows.append(("step with the tap / off", on / off < 1.05, f"{on:.2f} / {off:.2f} ms = {on / off:.4f}"))
    rows.append(
        ("step with the tap / before it", True, f"{on:.2f} / {untouched:.2f} ms = {on / untouched:.4f}")
    )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--batch", type=int, default=8, help="sequences of 512 tokens a step")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of 10 steps, on and off in turns")
    parser.add_argument("--json", action="store_true", help="print JSON rows")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device is visible here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="rankmem-cuda-check-") as folder:
        rows = check(arguments.batch, arguments.rounds, Path(folder))
    if arguments.json:
        print(json.dumps([{"check": name, "ok": ok, "detail": detail} for name, ok, detail in rows]))
    else:
        width = max(len(name) for name, _, _ in rows)
        for name, ok, detail in rows:
            print(f"{'ok  ' if ok else 'FAIL'}  {name:<{width}}  {detail}")
    return 0 if all(ok for _, ok, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
