"""Why it ran out of memory: recordings on devices too small for them, judged, against what really helps.

The recordings are those that others made on devices (``../shared/recordings``), and requests at random. The
naive rule looks at the state at the failure: room in sum, but not in a row, is fragmentation.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Figure, Options, say
from insights_fragmentation import FOLDER, MIB, _trace

from allocated_logs import AllocatorLog
from constructed import empty_database, store_logs
from oom_cases import Failed, failures, runs, runs_by_oracle
from rankmem import connect
from rankmem_aggregator.insights.fragmentation import TRIED
from rankmem_aggregator.insights.lives import Trace
from rankmem_aggregator.insights.oom_replay import alive_bytes, capacity_of, is_reproduced, tried, until
from rankmem_aggregator.insights.packing import intervals, live_peak_bytes
from rankmem_aggregator.insights.replays import needed_bytes

RECORDINGS = ("complete_small.pickle", "forward_fp32.pickle", "forward_large.pickle")
SEEDS = range(12)
QUICK_SEEDS = range(2)
CASES_LEAST = 141
CAPACITIES = 8
"""From 0.9 of the bytes alive at once up to what is needed."""


def measure(options: Options) -> list[Figure]:
    """All figures of this benchmark."""
    cases = same = with_oracle = oracle_same = naive = 0
    fails = {"fragmented": 0, "exhausted": 0}
    for name, failed in _cases(options):
        asked = until(failed.trace, failed.trace.failures[0])
        capacity = capacity_of(failed.trace, failed.trace.failures[0], failed.device_free)
        found = tried(asked, capacity, [asked.settings.changed(each) for each in TRIED])
        truth = {each.settings: runs(failed, each.settings) for each in found}
        helps = any(truth.values())
        says = any(each.runs for each in found)
        proven = alive_bytes(asked) > capacity.high_bytes
        cases += 1
        same += all(each.runs == truth[each.settings] for each in found) and not (proven and helps)
        naive += failed.state_says_fragmented() == helps
        fails["fragmented" if says else "exhausted"] += 1
        if name.startswith("random"):
            with_oracle += 1
            limits = {"": 1 << 62, "max_split_size_mb:128": 128 * MIB, "max_split_size_mb:512": 512 * MIB}
            by_text = {each.settings.text(): each.runs for each in found}
            oracle_same += all(
                by_text[text] == runs_by_oracle(failed, max_split=limits[text]) for text in limits
            )
            assert is_reproduced(asked, capacity)
    say(f"{cases} failures, {fails}")
    return [
        Figure(what="oom: failures made", value=cases, at_least=0 if options.quick else CASES_LEAST),
        Figure(
            what="oom: what each setting would have done is what a replay of its own does",
            value=same / max(cases, 1),
            at_least=1.0,
            note=f"{cases} failures; naive, from the state alone: {naive / max(cases, 1):.2f}",
        ),
        Figure(
            what="oom: likewise against the slow model (default and max_split)",
            value=oracle_same / max(with_oracle, 1),
            at_least=1.0,
            note=f"{with_oracle} failures of requests at random",
        ),
    ]


def _cases(options: Options) -> Iterator[tuple[str, Failed]]:
    for name, trace in _traces(options):
        least = live_peak_bytes(intervals(trace, trace.settings))
        most = needed_bytes(trace, trace.settings)
        shares = [least * share // 100 for share in (60, 75, 90, 95, 98)]
        shares += [least + (most - least) * part // CAPACITIES for part in range(CAPACITIES)]
        for failed in failures(trace, sorted(set(shares))):
            yield name, failed


def _traces(options: Options) -> Iterator[tuple[str, Trace]]:
    for name in RECORDINGS if FOLDER.is_dir() else ():
        if not options.quick or name == RECORDINGS[0]:
            yield name, _trace(options.folder / f"{name}.oom.duckdb", FOLDER / name)
    for seed in QUICK_SEEDS if options.quick else SEEDS:
        log = AllocatorLog()
        log.start()
        log.at_random(seed, 400, size_max=400 * MIB)
        path = options.folder / f"random-{seed}.duckdb"
        with empty_database(str(path)) as connection:
            store_logs(connection, [log.log])
        with connect(path) as queries:
            yield f"random {seed}", queries.allocator_trace(0)
