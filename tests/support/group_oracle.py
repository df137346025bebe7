"""Random logs of one rank, and the bytes of each group of blocks after each event, by a replay."""

from __future__ import annotations

from typing import Any

import duckdb
from hypothesis import strategies as st

from constructed import RankLog

Groups = dict[str | None, int]
CATEGORIES = ("activation", "gradient", "parameter", "unknown")
OLDER = "before the recording"


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = connection.sql(sql, params=parameters or None).to_arrow_table().to_pylist()
    return answer


def category_after(log: RankLog, block: dict[str, Any], seq: int) -> str:
    """A block's category after an event: the last one recorded by then."""
    category: str = block.get("category", "unknown")
    said = [
        c
        for c in log.changes
        if c["allocation_id"] == block["allocation_id"] and c["device"] == block["device"]
    ]
    for change in sorted(said, key=lambda change: change["seq"]):
        if change["seq"] <= seq:
            category = change["category"]
    return category


def held_after(log: RankLog, seq: int, by: str, device: str = "cpu") -> Groups:
    """The bytes of each group of blocks after an event."""
    freed = {end["allocation_id"]: end["freed_seq"] for end in log.endings}
    held: Groups = {}
    for block in log.allocations.values():
        end = block.get("freed_seq", freed.get(block["allocation_id"]))
        if block["device"] != device or block["allocation_id"] > seq or (end is not None and end <= seq):
            continue
        name = group_after(log, block, seq, by)
        held[name] = held.get(name, 0) + block["size_bytes"]
    return held


def group_after(log: RankLog, block: dict[str, Any], seq: int, by: str) -> str | None:
    """The group of a block after an event; OLDER for a preexisting block whose group is unknown."""
    name = category_after(log, block, seq) if by == "category" else block.get(by)
    if block["preexisting"] and name in (None, "unknown"):
        return OLDER
    return None if name is None else str(name)


def seqs_of(log: RankLog) -> list[int]:
    """-1, every event and every change of a category."""
    return sorted({-1} | {e["seq"] for e in log.events} | {max(c["seq"], -1) for c in log.changes})


def summits(log: RankLog, by: str) -> dict[str | None, tuple[int, int]]:
    """group -> (its own peak, the first seq after which it stood so high)."""
    best: dict[str | None, tuple[int, int]] = {}
    for seq in seqs_of(log):
        for name, held in held_after(log, seq, by).items():
            if name not in best or held > best[name][0]:
                best[name] = (held, seq)
    return best


@st.composite
def logs(draw: st.DrawFn) -> RankLog:
    """Blocks are allocated, change category and are freed; times may tie, some blocks are preexisting."""
    log = RankLog(offset_ns=draw(st.sampled_from([0, -5, 10**9])))
    sizes = st.integers(1, 50)
    streams, phases = st.sampled_from([None, 0, 7]), st.sampled_from(["forward", "backward"])
    for number in range(draw(st.integers(0, 2))):
        log.preexisting(f"older {number}", draw(sizes), category=draw(st.sampled_from(CATEGORIES)))
    alive, now = list(log.allocations), 0
    for number in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0, 1, 10**9]))
        what = draw(st.sampled_from(["alloc", "alloc", "free", "means", "always meant"]))
        if what == "alloc" or not alive:
            name = f"block {number}"
            columns = {
                "category": draw(st.sampled_from(CATEGORIES)),
                "stream": draw(streams),
                "phase": draw(phases),
            }
            log.alloc(name, draw(sizes), at=now, **columns)
            alive.append(name)
            continue
        name = draw(st.sampled_from(alive))
        if what == "free":
            alive.remove(name)
            log.free(name, at=now, told_later=draw(st.booleans()))
            continue
        block = log.allocations[name]["allocation_id"]
        always = what == "always meant"
        if not (always and any(c["allocation_id"] == block and c["seq"] == block for c in log.changes)):
            log.means(name, draw(st.sampled_from(CATEGORIES)), at=now, since_alloc=always)
    return log


BY = st.sampled_from(["category", "stream", "phase", "component"])
