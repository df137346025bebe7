"""torch.profiler's categories against ours, on the same steps of the same process.

The oracle is ``torch.profiler._memory_profiler``, which knows the inputs and outputs of every operator and
sees the whole window at once. A script trains under the tap, the hooks and torch.profiler together and
leaves a spool and what the oracle says of each storage and version. Blocks are matched by address and order:
the tap's events are Kineto's memory events one by one. What is compared is bytes-over-time within the
window: a block's size times the time for which both sides hold their categories. Lives are ours: Kineto does
not see the end of a block older than its window.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankmem_agent.spool.layout import Action, Category, DeviceType, Kind
from rankmem_agent.spool.meta import SpoolMeta
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.spool_reader.reader import Chunk
from tap_process import Recording, record_process

SCRIPT = """
sys.path.insert(0, {support!r})
tap.enable(ALL)
from category_window import record_window
record_window(
    tap, {model!r}, folder.parent / "oracle.json", warm_up={warm_up}, steps={steps}, device={device!r}
)
tap.close()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A block, or a stretch of its life, on which both sides hold one category."""

    size_bytes: int
    duration_ns: int
    theirs: Category
    ours: Category
    operator: str
    """Of the call that made it, as the tap has it."""
    phase: str
    maker: str
    """The oracle's node that made this version, "" for a block older than the window."""
    freed_in: str
    """The operator that freed it, "" if it lived on or died outside of any."""
    fault: str
    """Why the oracle cannot be right here, "" where it can; see :func:`_fault`."""

    @property
    def weight(self) -> int:
        """Byte-nanoseconds."""
        return self.size_bytes * self.duration_ns


@dataclass(slots=True)
class Agreement:
    """What both sides say of one training."""

    model: str
    pieces: list[Piece] = field(default_factory=list)

    def judged(self) -> list[Piece]:
        """Without the oracle's own faults."""
        return [piece for piece in self.pieces if not piece.fault]

    def confusion(self, pieces: list[Piece] | None = None) -> dict[tuple[Category, Category], int]:
        """Byte-nanoseconds by (theirs, ours)."""
        sums: dict[tuple[Category, Category], int] = defaultdict(int)
        for piece in self.pieces if pieces is None else pieces:
            sums[piece.theirs, piece.ours] += piece.weight
        return sums

    def precision_recall(self, category: Category, pieces: list[Piece] | None = None) -> tuple[float, float]:
        """Of one category: the share of ours that is theirs, and of theirs that is ours; nan without any."""
        sums = self.confusion(pieces)
        both = sums.get((category, category), 0)
        ours = sum(weight for (_, mine), weight in sums.items() if mine is category)
        theirs = sum(weight for (other, _), weight in sums.items() if other is category)
        return (both / ours if ours else float("nan"), both / theirs if theirs else float("nan"))


def train(
    model: str, folder: Path, *, warm_up: int = 2, steps: int = 3, device: str = "cpu"
) -> tuple[Recording, dict[str, Any]]:
    """Trains under the tap and torch.profiler, on ``cpu`` or ``cuda``; the spool and what the oracle says."""
    support = str(Path(__file__).parent)
    script = SCRIPT.format(support=support, model=model, warm_up=warm_up, steps=steps, device=device)
    recording = record_process(script, folder, is_forked=device == "cpu")
    assert recording.returncode == 0, recording.stderr
    assert not recording.gaps
    return recording, json.loads((folder / "oracle.json").read_text())


@dataclass(slots=True)
class Life:
    """A block as the database has it."""

    row: dict[str, Any]
    """Of allocation_record, with allocation_end's columns over it."""
    changes: list[tuple[int, str]] = field(default_factory=list)
    """(seq, category)."""

    def at(self, seq: int) -> Category:
        """The block's category at a place of the log."""
        held = self.row["category"]
        for since, category in sorted(self.changes):
            held = category if since <= seq else held
        return Category[held.upper()]

    def last(self) -> str:
        """Its last category, as allocation.category gives it."""
        return max(self.changes, default=(0, self.row["category"]))[1]


def our_lives(recording: Recording, batches: int = 1) -> tuple[dict[int, Life], dict[int, str]]:
    """Blocks by allocation id, and the operator of each call, with the log cut into so many batches."""
    meta = SpoolMeta(
        spool_id="0-0-0-0-0", session_id="0", attempt=0, rank=0, pid=0, process_start_ticks=0, start=0,
        aggregator="", project_root="/", session={}, rank_row={}, host={}, monotonic_ns=0, realtime_ns=0,
    )  # fmt: skip
    pairing = Pairing(meta, recording.reader.strings)
    lives: dict[int, Life] = {}
    operators: dict[int, str] = {}
    cuts = np.linspace(0, len(recording.records), batches + 1).astype(int).tolist()
    for begin, end in itertools.pairwise(cuts):
        seq = recording.seq[begin:end]
        pairing.feed(Chunk(sequence_first=int(seq[0]), records=recording.records[begin:end]))
        rows = dict(pairing.cut(final=end == len(recording.records)))
        for row in _rows(rows, "allocation_record"):
            lives[row["allocation_id"]] = Life(row)
        for row in _rows(rows, "allocation_end"):
            lives[row["allocation_id"]].row |= row
        for row in _rows(rows, "category_change"):
            life = lives[row["allocation_id"]]
            assert row["seq"] not in [seq for seq, _ in life.changes]
            life.changes.append((row["seq"], row["category"]))
        operators |= {row["call_id"]: row["operator"] for row in _rows(rows, "operator_call")}
    return lives, operators


def _rows(rows: dict[str, Any], table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows[table].to_pylist() if table in rows else []
    return found


def compare(
    model: str, recording: Recording, oracle: dict[str, Any], batches: int = 1, device: str = "cpu"
) -> Agreement:
    """Lays the oracle's categories beside ours, of the blocks of one type of device."""
    lives, operators = our_lives(recording, batches)
    first, last = oracle["first"], oracle["last"]
    time_of = dict(
        zip(recording.seq.tolist(), recording.records["time_ns"].astype(np.int64).tolist(), strict=True)
    )
    clock = np.array(sorted((seq, time) for seq, time in time_of.items()))
    begin_ns = int(clock[np.searchsorted(clock[:, 0], first), 1])
    end_ns = int(clock[np.searchsorted(clock[:, 0], last) - 1, 1])
    key_of, offset_ns = _match(recording, oracle, first, last, device)
    told = {(key, version): Category(value) for key, version, value in oracle["told"]}
    made = defaultdict(list)
    for key, version, time_ns, name, within in oracle["makers"]:
        made[key].append((version, time_ns + offset_ns, name, within))
    witnesses = defaultdict(list)
    for key, value, time_ns in oracle["witnesses"]:
        witnesses[key, Category(value)].append(time_ns + offset_ns if time_ns >= 0 else None)
    old: dict[int, int] = {}
    in_window = set(key_of.values())
    for key, pointer in enumerate(oracle["keys"]):
        if key not in in_window:
            old.setdefault(pointer, key)
    freed_in = _freed_in(recording, operators)
    agreement = Agreement(model)
    for allocation_id, life in lives.items():
        row = life.row
        freed = -1 if row["freed_seq"] is None else row["freed_seq"]
        is_elsewhere = row["device"].partition(":")[0] != device
        if is_elsewhere or allocation_id >= last or (freed != -1 and freed < first):
            continue
        start = max(time_of.get(allocation_id, begin_ns), begin_ns)
        stop = end_ns if freed == -1 else min(time_of[freed], end_ns)
        if allocation_id >= first:
            key = key_of[allocation_id]
        else:
            key = old.get(row["address"])
            if key is None:
                continue  # never touched in the window: the oracle does not know it
        versions = [each for each in sorted(made[key]) if each[0] > 0 and each[1] < stop]
        first_one = next((each for each in made[key] if each[0] == 0), None)
        is_unseen = allocation_id >= first and first_one is None
        if first_one is None:  # made by nothing that the oracle sees: for the engine, where it alone writes
            writers = {each[3] for each in made[key]}
            first_one = (0, start, "", "engine" if writers == {"engine"} else "")
        versions = [(0, start, *first_one[2:]), *[(v, max(t, start), *rest) for v, t, *rest in versions]]
        borders = [*[since for _, since, *_ in versions[1:]], stop]
        for (version, since, maker, within), until in zip(versions, borders, strict=True):
            theirs = told.get((key, version), Category.UNKNOWN)
            agreement.pieces.append(
                Piece(
                    size_bytes=row["size_bytes"], duration_ns=max(until - since, 0), theirs=theirs,
                    ours=life.at(int(clock[np.searchsorted(clock[:, 1], since, side="right") - 1, 0])),
                    operator=row["operator"] or "", phase=row["phase"] or "", maker=maker,
                    freed_in=freed_in.get(freed, ""),
                    fault=_fault(key, theirs, within, witnesses[key, theirs], (start, stop), is_unseen),
                )
            )  # fmt: skip
    return agreement


def _fault(
    key: int,
    theirs: Category,
    within: str,
    witnesses: list[int | None],
    life: tuple[int, int],
    is_unseen: bool,
) -> str:
    """Why the oracle cannot be right about this piece; told from its own evidence, never from our answer.

    Args:
        within: where its tree has the node that made this version.
        witnesses: when modules and optimizers with this storage were called, None for AccumulateGrad.
        life: the block's, in the window.
        is_unseen: the block was made in the window, and by no node of the graph.
    """
    if key == -1:
        return "no tensor"  # no operator took it as an argument, so it is in no node of the oracle's graph
    if theirs is Category.INPUT and is_unseen:
        return "only read"  # an operator's further result, as cuDNN's reserve of an RNN: a node only read it
    if within == "engine" and theirs is Category.UNKNOWN:
        return "engine"  # autograd's sums of gradients lie beside the nodes, in no BACKWARD_FUNCTION scope
    if theirs is Category.PARAMETER and not witnesses:
        return "deduced"  # from data flow: no module and no optimizer has it
    if theirs is Category.GRADIENT and not witnesses:
        return "shared id"  # it goes by the id of a tensor, which others have after it
    if within == "optimizer" and theirs in (Category.ACTIVATION, Category.INPUT, Category.UNKNOWN):
        return "optimizer"  # scratch of its step: neither computed by the model, nor data
    seen_alive = [time_ns is None or life[0] <= time_ns <= life[1] for time_ns in witnesses]
    if witnesses and not any(seen_alive):
        return "stale address"  # the Python tracer keeps the address of a gradient that is gone
    return ""


def _match(
    recording: Recording, oracle: dict[str, Any], first: int, last: int, device: str
) -> tuple[dict[int, int], int]:
    """The oracle's key of each of our allocs in the window, and what makes its times ours."""
    inside = (recording.records["kind"] == Kind.EVENT) & (recording.seq >= first) & (recording.seq < last)
    inside &= recording.records["device_type"] == DeviceType[device.upper()]
    ours = recording.records[inside]
    is_alloc = ours["action"] == Action.ALLOC
    allocs, seq = ours[is_alloc], recording.seq[inside][is_alloc]
    theirs = [event for event in oracle["events"] if event[2] > 0]
    pairs = [(int(a["a"]), int(a["b"])) for a in allocs]
    if device == "cuda":  # there Kineto has the allocator's own size of the block
        pairs = [(pointer, size) for (pointer, _), (_, _, size, _) in zip(pairs, theirs, strict=True)]
    assert pairs == [(pointer, size) for _, pointer, size, _ in theirs], "the tap and Kineto differ"
    offsets = allocs["time_ns"].astype(np.int64) - np.array([event[0] for event in theirs], np.int64)
    return {int(s): event[3] for s, event in zip(seq, theirs, strict=True)}, int(np.median(offsets))


def _freed_in(recording: Recording, operators: dict[int, str]) -> dict[int, str]:
    frees = (recording.records["kind"] == Kind.EVENT) & (recording.records["action"] == Action.FREE_COMPLETED)
    return {
        int(seq): operators.get(int(call), "")
        for seq, call in zip(recording.seq[frees], recording.records["call_id"][frees], strict=True)
    }


def summary(agreement: Agreement, top: int = 12) -> str:
    """The largest disagreements, for whoever looks for a cause."""
    total = sum(piece.weight for piece in agreement.pieces) or 1
    sums: Counter[tuple[str, ...]] = Counter()
    for piece in agreement.pieces:
        if piece.theirs is not piece.ours:
            about = (
                piece.theirs.name,
                piece.ours.name,
                piece.maker,
                piece.operator,
                piece.phase,
                piece.freed_in,
                piece.fault,
            )
            sums[about] += piece.weight
    return "\n".join(f"{weight / total:8.4%}  {' | '.join(about)}" for about, weight in sums.most_common(top))
