"""Random jobs, and the peak of each by a plain merge of all events."""

from __future__ import annotations

from hypothesis import strategies as st

from constructed import BASE_NS, SECOND_NS, RankLog


def merged(logs: list[RankLog]) -> dict[str, tuple[int, int, dict[tuple[int, int, str], int]]]:
    """device type -> (bytes, instant, share of each device): every event of every rank, in order of time."""
    last_attempt = max(log.attempt for log in logs)
    changes = []
    for log in logs:
        for event in log.events:
            place = (event["time_ns"] + log.offset_ns, log.attempt, log.rank, event["seq"])
            changes.append((place, event["device"], event["requested_bytes"]))
        end = end_of(log, logs) if log.attempt < last_attempt or log.ended is not None else None
        if end is not None:
            for device in {event["device"] for event in log.events}:
                last = max(e["time_ns"] + log.offset_ns for e in log.events if e["device"] == device)
                changes.append(((max(end, last), log.attempt, log.rank, 2**63 - 1), device, 0))
    changes.sort(key=lambda change: change[0])
    held: dict[str, dict[tuple[int, int, str], int]] = {}
    best: dict[str, tuple[int, int, dict[tuple[int, int, str], int]]] = {}
    for (time_ns, attempt, rank, _), device, total in changes:
        device_type = device.partition(":")[0]
        shares = held.setdefault(device_type, {})
        shares[attempt, rank, device] = total
        if device_type not in best or sum(shares.values()) > best[device_type][0]:
            best[device_type] = (sum(shares.values()), time_ns, {k: v for k, v in shares.items() if v})
    return best


def end_of(log: RankLog, logs: list[RankLog]) -> int:
    """Its own end, else the start of the first worker of a later attempt."""
    if log.ended is not None:
        return BASE_NS + log.ended + log.offset_ns
    return min(BASE_NS + other.started + other.offset_ns for other in logs if other.attempt > log.attempt)


GAPS_NS = st.sampled_from(
    [0, 0, 1, 1000, 2_000_000, 3_906_249, 3_906_250, 250_000_000, SECOND_NS - 1, SECOND_NS, 7 * SECOND_NS]
)


OFFSETS_NS = st.sampled_from(
    [0, 0, 1, -1, 3_906_250, -2_000_000, SECOND_NS, -3 * SECOND_NS // 2, 123_456_789]
)


@st.composite
def log_of_a_rank(draw: st.DrawFn, attempt: int, rank: int, offsets: list[int], started: int) -> RankLog:
    host = draw(st.integers(0, len(offsets) - 1))
    log = RankLog(
        attempt=attempt, rank=rank, host_uid=f"host-{host}", offset_ns=offsets[host], started=started
    )
    now = started
    for gap in draw(st.lists(GAPS_NS, max_size=12)):
        now += gap
        log.skip(draw(st.sampled_from([0, 0, 0, 1, 15, 64])))
        log.totals(
            draw(st.sampled_from(["cuda:0", "cuda:0", "cuda:1", "cpu"])), [(now, draw(st.integers(0, 20)))]
        )
    log.ended = draw(st.none() | GAPS_NS.map(lambda gap: now + gap))
    return log


@st.composite
def jobs(draw: st.DrawFn) -> list[RankLog]:
    offsets = draw(st.lists(OFFSETS_NS, min_size=1, max_size=3))
    logs = []
    for attempt in range(draw(st.integers(1, 2))):
        started = attempt * draw(GAPS_NS) + draw(st.sampled_from([0, 1, 500_000_000]))
        ranks = range(draw(st.integers(1, 4)))
        logs += [draw(log_of_a_rank(attempt, rank, offsets, started)) for rank in ranks]
    return logs
