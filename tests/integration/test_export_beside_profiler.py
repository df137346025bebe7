"""A memory timeline beside torch.profiler's own of the same steps: the same layout, the same changes."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from constructed import SESSION, empty_database, store_rows
from rankmem_agent.spool.meta import SpoolMeta
from rankmem_aggregator import connect
from rankmem_aggregator.exports.exporting import export
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.spool_reader.reader import Chunk
from tap_process import Recording, record_process

pytest.importorskip("torch.profiler._memory_profiler", reason="deprecated; gone from this torch")

WINDOW = """
SELECT min(time_ns) AS from_ns, max(time_ns) AS until_ns FROM memory_event WHERE seq BETWEEN $first AND $last
"""
PREEXISTING, CREATE, DESTROY = 1, 2, 4
TEMPORARY = (
    3  # of the export: an optimizer's scratch among it, to which torch gives no category or a wrong one
)
SCRIPT = """
import json, warnings
sys.path.insert(0, {support!r})
tap.enable(ALL)
from torch.profiler import ProfilerActivity, profile
from category_models import MODELS
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.step_hooks import StepHooks
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import Tags
guard = Guard(0)
modules, tags = (kind(tap, torch.compiler.is_compiling, guard) for kind in (Modules, Tags))
for one in (modules, tags, StepHooks(tap, torch.compiler.is_compiling, guard, Steps(tap), tags)):
    one.install()
modules.when_named(tags.tree)
step = MODELS["mlp"]()
step(), step()
options = {{"record_shapes": True, "profile_memory": True, "with_stack": True}}
with profile(activities=[ProfilerActivity.CPU], **options) as seen:
    first = tap.stat(Stat.NEXT_SEQ)
    step(), step()
    last = tap.stat(Stat.NEXT_SEQ) - 1
warnings.simplefilter("ignore")
for name in ("t.raw.json.gz", "t.json"):
    seen.export_memory_timeline(str(folder.parent / name), device="cpu")
(folder.parent / "window.json").write_text(json.dumps([first, last]))
tap.close()
"""


def database(recording: Recording, path: Path) -> Path:
    """What pairing makes of the spool, as a database."""
    meta = SpoolMeta(
        spool_id="0-0-0-0-0", session_id=SESSION, attempt=0, rank=0, pid=0, process_start_ticks=0, start=0,
        aggregator="", project_root="/", session={}, rank_row={}, host={}, monotonic_ns=0, realtime_ns=0,
    )  # fmt: skip
    pairing = Pairing(meta, recording.reader.strings)
    pairing.feed(Chunk(sequence_first=int(recording.seq[0]), records=recording.records))
    whose = {"session_id": SESSION, "attempt": 0, "rank": 0}
    with empty_database(str(path)) as connection:
        store_rows(connection, "session", [{"session_id": SESSION, "source": "live", "started_at_ns": 0}])
        store_rows(connection, "rank_info", [{**whose, "host_uid": "h", "spool_id": "s", "started_at_ns": 0}])
        for table, batch in pairing.cut(final=True):
            if table in (
                "memory_event",
                "allocation_record",
                "allocation_end",
                "category_change",
                "memory_bucket",
            ):
                store_rows(connection, table, batch.to_pylist())
    return path


def unpacked(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def test_the_same_steps_give_the_same_changes_in_the_same_layout(tmp_path: Path) -> None:
    recording = record_process(SCRIPT.format(support=str(Path(__file__).parents[1] / "support")), tmp_path)
    assert recording.returncode == 0, recording.stderr
    first, last = json.loads((tmp_path / "window.json").read_text())
    with connect(database(recording, tmp_path / "r.duckdb")) as queries:
        window = queries.sql(WINDOW, {"first": first, "last": last}).to_pylist()[0]
        for name in ("o.raw.json.gz", "o.json"):
            export(queries, "memory-timeline", tmp_path / name, **window)
    theirs, ours = unpacked(tmp_path / "t.raw.json.gz"), unpacked(tmp_path / "o.raw.json.gz")
    made = [(entry[2], entry[3]) for entry in ours if entry[1] == CREATE]
    assert [size for size, _ in made] == [entry[2] for entry in theirs if entry[1] == CREATE]
    freed, freed_there = (
        Counter(entry[2] for entry in side if entry[1] == DESTROY) for side in (ours, theirs)
    )
    before = Counter(-entry[2] for entry in ours if entry[1] == PREEXISTING)
    assert not freed_there - freed
    assert not freed - freed_there - before, (
        "Kineto misses the ends of blocks older than its window, no others"
    )
    alike = Counter(made) & Counter((entry[2], entry[3]) for entry in theirs if entry[1] == CREATE)
    told = sum(size for size, category in made if category != TEMPORARY)
    share = sum(size * count for (size, _), count in alike.items()) / told
    assert share > 0.6, "docs/categories.md says where torch's categories differ, and why"
    assert [layout_of(entry) for entry in ours[:1]] == [layout_of(entry) for entry in theirs[:1]]
    times, totals = unpacked(tmp_path / "o.json")
    their_times, their_totals = unpacked(tmp_path / "t.json")
    assert layout_of(times) == layout_of(their_times)
    assert {len(row) for row in totals} == {len(row) for row in their_totals} == {9}
    assert {row[0] for row in totals} == {0}
    assert times[0] == times[1], "what was there before stands at the first instant"
    assert their_times[0] == their_times[1]


def layout_of(value: Any) -> set[type]:
    return {type(each) for each in value}
