"""Segments and failures as the page's server answers them: against PyTorch's own, and ``rankmem oom``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from constructed import SESSION, RankLog, empty_database, store_logs, store_rows
from page_server import PageClient, served_page
from rankmem_aggregator import connect
from rankmem_aggregator.page.answers import fragmentation
from rankmem_aggregator.page.answers.segments import BLOCK, HOLE, PENDING
from rankmem_aggregator.page.reading import facts_of
from rankmem_cli.main import app
from rankmem_imports.files.plain_pickle import load_plain
from rankmem_protos.errors import Code, RankmemError
from served import served

RECORDINGS = Path(__file__).resolve().parents[2].parent / "shared" / "recordings" / "torch_snapshot"
MIB = 1 << 20
MS = 1_000_000
FAR = -(2**63) + (2 << 20)
OLDER = {
    "session_id": SESSION, "attempt": 0, "rank": 0, "device": "cuda:0", "seq": -1, "address": 0x30_0000_0000,
    "size_bytes": 2 * MIB, "stream": 0,
}  # fmt: skip
"""A segment that was there when the recording began."""


def log_of_segments() -> RankLog:
    """Two segments, one mapped in three pieces and cut in its middle, a pending free, two failures."""
    log = RankLog(ended=1000 * MS)
    cuda = "cuda:0"
    log.segment("segment_alloc", 0x10_0000_0000, 20 * MIB, at=0)
    log.alloc("a", 5 * MIB, at=1 * MS, device=cuda, address=0x10_0000_0000, operator="aten::a", stream=0)
    log.alloc("b", 3 * MIB - 100, at=2 * MS, device=cuda, address=0x10_0000_0000 + 8 * MIB, stream=0)
    log.segment("segment_alloc", FAR, 2 * MIB, at=3 * MS)
    log.alloc("c", 700, at=4 * MS, device=cuda, address=FAR + 512, operator="aten::c", stream=0)
    log.oom(64 * MIB, at=5 * MS, device_free_bytes=16 * MIB, operator="aten::x", stream=0)
    log.request_free("a", at=6 * MS)
    for piece in range(3):
        log.segment("segment_map", 0x20_0000_0000 + piece * 20 * MIB, 20 * MIB, at=(7 + piece) * MS)
    log.alloc("d", 30 * MIB, at=11 * MS, device=cuda, address=0x20_0000_0000, operator="aten::d", stream=0)
    log.oom(MIB, at=12 * MS, device_free_bytes=0, stream=7)
    log.free("d", at=13 * MS, told_later=True)
    log.segment("segment_unmap", 0x20_0000_0000 + 20 * MIB, 20 * MIB, at=14 * MS)
    log.free("a", at=15 * MS)
    log.free("c", at=16 * MS)
    log.segment("segment_free", FAR, 2 * MIB, at=16 * MS)
    log.alloc("e", 100, at=17 * MS, device=cuda, address=FAR + 512, operator="aten::e", stream=0)
    return log


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("segments") / "job.duckdb"
    other = RankLog(rank=1, ended=1000 * MS, host_uid="host-1")
    other.alloc("x", 5000, at=3 * MS)
    other.alloc("y", 7000, at=8 * MS)
    with empty_database(str(path)) as connection:
        store_logs(connection, [log_of_segments(), other])
        store_rows(connection, "older_segment", [OLDER])
    return path


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[PageClient]:
    with served_page(path) as served:
        yield served


def test_of_blocks_without_an_address_the_bytes_are_known_and_nothing_else(tmp_path: Path) -> None:
    log = RankLog(ended=1000 * MS)
    log.preexisting("older", 5000, device="cuda:0")
    log.alloc("x", 3000, at=3 * MS, device="cuda:0", address=None)
    log.alloc("gone", 700, at=4 * MS, device="cuda:0", address=None)
    log.free("gone", at=5 * MS)
    with empty_database(str(tmp_path / "job.duckdb")) as connection:
        store_logs(connection, [log])
    with served_page(tmp_path / "job.duckdb") as served:
        answer = served.ask(f"s/{SESSION}/segments", rank=0, seq=2)
    facts = facts_of(answer)
    assert (answer.num_rows, facts["segments"], facts["pools"]) == (0, [], [])
    assert (facts["num_without_address"], facts["requested_bytes"]) == (2, 8000)
    assert facts["pending_bytes"] is None, "where they lay may be waited for"


def test_older_blocks_are_named_where_nothing_else_is_known_of_them(tmp_path: Path) -> None:
    log = RankLog(ended=1000 * MS)
    cuda = "cuda:0"
    log.preexisting("older", 5000, device=cuda, address=0x10_0000_0000)
    log.preexisting("known", 6000, device=cuda, address=0x10_0001_0000, operator="aten::k", category="input")
    log.alloc("new", 3000, at=3 * MS, device=cuda, address=0x10_0002_0000)
    with empty_database(str(tmp_path / "job.duckdb")) as connection:
        store_logs(connection, [log])
    with served_page(tmp_path / "job.duckdb") as served:
        rows = served.ask(f"s/{SESSION}/segments", rank=0).to_pylist()
    older = "before the recording"
    assert [(row["category"], row["operator"], row["line"]) for row in rows] == [
        (older, older, older),
        ("input", "aten::k", older),
        ("unknown", None, None),
    ]


def failures(path: Path) -> list[dict[str, Any]]:
    with connect(path) as queries:
        return list(queries.oom(SESSION).to_pylist())


FIGURES = ("unused_bytes", "largest_free_bytes", "fragmentation")


@pytest.mark.parametrize("number", [0, 1])
def test_at_a_failure_the_figures_are_those_of_oom_overview(
    client: PageClient, path: Path, number: int
) -> None:
    failure = failures(path)[number]
    facts = client.facts(f"s/{SESSION}/segments", rank=0, seq=failure["seq"])
    assert {name: facts[name] for name in FIGURES} == {name: failure[name] for name in FIGURES}
    curve = client.ask(f"s/{SESSION}/fragmentation", rank=0).to_pylist()
    [at_failure] = [row for row in curve if row["seq"] == failure["seq"]]
    assert {name: at_failure[name] for name in FIGURES} == {name: failure[name] for name in FIGURES}


def parts(answer: pa.Table, kind: int) -> dict[int, int]:
    """Sizes by address."""
    return {int(row["address"], 16): row["size_bytes"] for row in answer.to_pylist() if row["kind"] == kind}


def test_segments_have_blocks_pending_frees_rounding_and_holes(client: PageClient, path: Path) -> None:
    seq = next(event["seq"] for event in log_of_segments().events if event["action"] == "free_requested")
    answer = client.ask(f"s/{SESSION}/segments", rank=0, seq=seq)
    facts = facts_of(answer)
    far = FAR % 2**64
    assert parts(answer, PENDING) == {0x10_0000_0000: 5 * MIB}
    assert parts(answer, BLOCK) == {far + 512: 1024, 0x10_0000_0000 + 8 * MIB: 3 * MIB}
    assert parts(answer, HOLE) == {
        far: 512,
        far + 1536: 2 * MIB - 1536,
        0x10_0000_0000 + 5 * MIB: 3 * MIB,
        0x10_0000_0000 + 11 * MIB: 9 * MIB,
        0x30_0000_0000: 2 * MIB,
    }
    assert (facts["reserved_bytes"], facts["pending_bytes"]) == (24 * MIB, 5 * MIB)
    assert facts["rounding_bytes"] == 100 + 324
    assert {row["segment"]: row["address"] for row in facts["segments"]} == {
        0: hex(far),
        1: "0x1000000000",
        2: "0x3000000000",
    }
    [pool] = facts["pools"]
    assert (pool["segments"], pool["blocks"], pool["largest_free_bytes"]) == (3, 3, 9 * MIB)
    assert pool["unused_bytes"] == facts["unused_bytes"] == sum(parts(answer, HOLE).values())


def test_an_expandable_segment_is_one_line_and_two_once_its_middle_is_unmapped(client: PageClient) -> None:
    events = log_of_segments().events
    mapped = [event["seq"] for event in events if event["action"] == "segment_map"][-1]
    unmapped = next(event["seq"] for event in events if event["action"] == "segment_unmap")
    whole = client.facts(f"s/{SESSION}/segments", rank=0, seq=mapped + 1)["segments"][-2]
    assert (whole["address"], whole["size_bytes"], whole["is_expandable"]) == ("0x2000000000", 60 * MIB, True)
    answer = client.ask(f"s/{SESSION}/segments", rank=0, seq=mapped + 1)
    assert parts(answer, BLOCK)[0x20_0000_0000] == 30 * MIB
    assert parts(answer, HOLE)[0x20_0000_0000 + 30 * MIB] == 30 * MIB
    cut = client.facts(f"s/{SESSION}/segments", rank=0, seq=unmapped)["segments"][-3:-1]
    assert [(row["address"], row["size_bytes"]) for row in cut] == [
        ("0x2000000000", 20 * MIB),
        (hex(0x20_0000_0000 + 40 * MIB), 20 * MIB),
    ]


def test_blocks_outside_of_known_segments_are_shown_in_no_figure(client: PageClient) -> None:
    last = log_of_segments().events[-1]["seq"]
    facts = client.facts(f"s/{SESSION}/segments", rank=0, seq=last)
    assert facts["outside_bytes"] == 100
    [unknown] = [row for row in facts["segments"] if not row["is_known"]]
    assert int(unknown["address"], 16) == FAR % 2**64 + 512
    assert facts["reserved_bytes"] == facts["unused_bytes"] + 3 * MIB


def test_without_segments_the_answer_says_so(client: PageClient) -> None:
    facts = client.facts(f"s/{SESSION}/segments", rank=1)
    assert (facts["knows_segments"], facts["unused_bytes"], facts["reserved_bytes"]) == (False, None, None)
    answer = client.ask(f"s/{SESSION}/fragmentation", rank=1)
    assert (answer.num_rows, facts_of(answer)["knows_segments"]) == (0, False)


def test_fragmentation_over_time_is_that_of_each_instant(client: PageClient) -> None:
    answer = client.ask(f"s/{SESSION}/fragmentation", rank=0)
    events = [event["seq"] for event in log_of_segments().events]
    assert answer["seq"].to_pylist() == events
    assert facts_of(answer)["exact"]
    for row in answer.to_pylist():
        facts = client.facts(f"s/{SESSION}/segments", rank=0, seq=row["seq"])
        assert row["reserved_bytes"] == facts["reserved_bytes"]
        assert {name: row[name] for name in FIGURES} == {name: facts[name] for name in FIGURES}
    part = client.ask(f"s/{SESSION}/fragmentation", rank=0, from_=2 * MS, to=4 * MS)
    assert part["seq"].to_pylist() == events[2:5]


def test_what_is_too_much_to_read_is_cut_and_what_is_left_is_exact(
    client: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {row["seq"]: row for row in client.ask(f"s/{SESSION}/fragmentation", rank=0).to_pylist()}
    monkeypatch.setattr(fragmentation, "ROWS_MAX", 6)
    # The older segment, one of three pieces and blocks a, b, c; then the second segment came.
    cut = client.ask(f"s/{SESSION}/fragmentation", rank=0, from_=0)
    facts = facts_of(cut)
    kinds = log_of_segments().events
    rows = [event["seq"] for event in kinds if event["action"] in ("alloc", "segment_alloc", "segment_map")]
    assert facts["cut_seq"] == rows[5], "with the older segment, the sixth is the first beyond"
    assert not facts["exact"]
    assert facts["rows_max"] == 6
    assert cut.to_pylist() == [row for seq, row in whole.items() if seq < rows[5]]


def test_where_there_are_many_blocks_fewer_instants_are_looked_at(
    client: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends, the peak and the failures are among them."""
    whole = client.ask(f"s/{SESSION}/fragmentation", rank=0)
    by_seq = {row["seq"]: row for row in whole.to_pylist()}
    monkeypatch.setattr(fragmentation, "LOOKS_MAX", 70)
    answer = client.ask(f"s/{SESSION}/fragmentation", rank=0, from_=0, to=2000 * MS)
    facts, seqs = facts_of(answer), answer["seq"].to_pylist()
    assert 2 < len(seqs) < whole.num_rows
    assert {min(by_seq), max(by_seq), facts["peak_seq"], *facts["failures"]} <= set(seqs)
    assert (facts["exact"], facts["cut_seq"], len(facts["failures"])) == (False, None, 2)
    assert answer.to_pylist() == [by_seq[seq] for seq in seqs]


def test_failures_are_those_of_rankmem_oom(client: PageClient, path: Path) -> None:
    answer = client.ask(f"s/{SESSION}/oom")
    origin_ns = int(facts_of(answer)["origin_ns"])
    expected = failures(path)
    assert len(expected) == 2
    for ours, theirs in zip(answer.to_pylist(), expected, strict=True):
        assert (ours.pop("allocator"), ours.pop("settings")) == (None, None)
        theirs.pop("time_utc")
        theirs["stream"] = str(theirs["stream"])
        assert ours | {"time_ns": ours["time_ns"] + origin_ns} == theirs


@pytest.mark.parametrize("by", ["category", "line", "stream"])
def test_who_held_at_a_failure_is_as_oom_held_has_it(client: PageClient, path: Path, by: str) -> None:
    failure = failures(path)[0]
    place = {name: failure[name] for name in ("attempt", "rank", "device", "seq")}
    with connect(path) as queries:
        expected = queries.oom_held(SESSION, by=by, **place)  # type: ignore[arg-type]
    answer = client.ask(f"s/{SESSION}/oom_held", by=by, **place)
    assert answer.num_rows > 0
    assert answer.to_pylist() == expected.select(answer.column_names).to_pylist()


def test_what_the_other_ranks_held_is_as_held_at_has_it(client: PageClient, path: Path) -> None:
    failure = failures(path)[0]
    place = {name: failure[name] for name in ("attempt", "rank", "device", "seq")}
    with connect(path) as queries:
        expected = queries.held_at(failure["time_ns"], SESSION).to_pylist()
    answer = client.ask(f"s/{SESSION}/oom_ranks", **place)
    origin_ns = int(facts_of(answer)["origin_ns"])
    assert [row | {"time_ns": row["time_ns"] + origin_ns} for row in answer.to_pylist()] == expected
    assert [row["requested_bytes"] for row in expected if row["rank"] == 1] == [5000]
    with pytest.raises(RankmemError, match="no allocation failed at event 0") as refused:
        client.ask(f"s/{SESSION}/oom_ranks", **(place | {"seq": 0}))
    assert refused.value.code is Code.NOT_FOUND


def test_the_last_events_before_a_failure_end_with_it(client: PageClient, path: Path) -> None:
    failure = failures(path)[1]
    place = {name: failure[name] for name in ("attempt", "rank", "device", "seq")}
    rows = client.ask(f"s/{SESSION}/oom_events", **place).to_pylist()
    events = [event for event in log_of_segments().events if event["seq"] <= failure["seq"]]
    assert [(row["seq"], row["action"], row["size_bytes"]) for row in rows] == [
        (event["seq"], event["action"], event["size_bytes"]) for event in reversed(events)
    ]
    assert rows[0]["action"] == "oom"
    assert len(client.ask(f"s/{SESSION}/oom_events", limit=3, **place)) == 3


@pytest.mark.parametrize("route", ["oom", "oom_held", "oom_ranks", "oom_events", "segments", "fragmentation"])
def test_the_panels_sql_gives_its_rows(client: PageClient, path: Path, route: str) -> None:
    failure = failures(path)[0]
    place = {name: failure[name] for name in ("attempt", "rank", "device", "seq")}
    asked = {"oom": {}, "fragmentation": {"rank": 0}}.get(route, place)
    answer = client.ask(f"s/{SESSION}/{route}", **asked)
    with connect(path) as queries:
        rows = queries.sql(facts_of(answer)["sql"])
    if route in ("segments", "fragmentation"):  # what they are computed from
        blocks = [row["seq"] for row in rows.to_pylist() if row["kind"] == "block"]
        assert set(answer["block"].to_pylist()) - {None} == set(blocks) if route == "segments" else blocks
        return
    for name in set(answer.column_names) & set(rows.column_names) - {"time_ns", "stream", "stack_id"}:
        assert answer[name].to_pylist() == rows[name].to_pylist()


NAMES = (
    "complete_small.pickle",
    "forward_large.pickle",
    "torch20_oom.pickle",
    "npu_expandable.pkl",
    "npu_empty_cache.pkl",
)
BESIDE_A_HOLE = ("npu_empty_cache.pkl",)
"""Rests that were not split off lie beside holes: where the one ends and the other begins is not known."""


@pytest.mark.recordings
@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs ../shared/recordings/torch_snapshot")
@pytest.mark.parametrize("name", NAMES)
def test_segments_of_a_snapshot_are_pytorchs_own(name: str, tmp_path: Path) -> None:
    db = tmp_path / "snapshot.duckdb"
    result = CliRunner().invoke(app, ["import", str(RECORDINGS / name), "--db", str(db)])
    assert result.exit_code == 0, result.output
    with connect(db) as queries:
        session = queries.session_id()
        last = queries.sql("SELECT max(seq) AS seq FROM memory_event").to_pylist()[0]["seq"]
    with served_page(db) as client:
        answer = client.ask(f"s/{session}/segments", rank=0, seq=last)
    facts = facts_of(answer)
    raw = load_plain(RECORDINGS / name)
    assert {
        (int(each["address"], 16), each["size_bytes"], int(each["stream"])) for each in facts["segments"]
    } == {(each["address"], each["total_size"], each["stream"]) for each in raw["segments"]}
    used, free = blocks_of(raw)
    rows = answer.to_pylist()
    ours = {
        int(row["address"], 16): (row["requested_bytes"], row["kind"] == PENDING, row["size_bytes"])
        for row in rows
        if row["kind"] != HOLE
    }
    assert {where: block[:2] for where, block in ours.items()} == {
        where: block[:2] for where, block in used.items()
    }
    assert facts["reserved_bytes"] == sum(each["total_size"] for each in raw["segments"])
    if name in BESIDE_A_HOLE:
        assert all(block[2] <= used[where][2] for where, block in ours.items())
        assert sum(ours[where] != used[where] for where in used) == 3
    else:
        assert ours == used
        assert parts(answer, HOLE) == free
        assert facts["unused_bytes"] - facts["unsplit_bytes"] == sum(free.values())


def blocks_of(raw: dict[str, Any]) -> tuple[dict[int, tuple[int, bool, int]], dict[int, int]]:
    """PyTorch's blocks in use, (requested bytes, pending, size) by address; and the sizes of free ones."""
    used, free = {}, {}
    for segment in raw["segments"]:
        where = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                free[where] = block["size"]
            else:
                history = block.get("history") or [{}]
                requested = block.get("requested_size") or history[0].get("real_size", block["size"])
                used[where] = (requested, block["state"] != "active_allocated", block["size"])
            where += block["size"]
    return used, free


def test_through_an_aggregator_the_answers_are_the_same(
    path: Path, client: PageClient, tmp_path: Path
) -> None:
    copy = tmp_path / "job.duckdb"
    copy.write_bytes(path.read_bytes())
    failure = failures(path)[0]
    place = {name: failure[name] for name in ("attempt", "rank", "device", "seq")}
    questions: list[tuple[str, dict[str, Any]]] = [
        ("segments", {"rank": 0, "seq": failure["seq"]}),
        ("fragmentation", {"rank": 0}),
        ("map", {"rank": 0, "kind": "address"}),
        ("block_stack", {"rank": 0, "block": 1}),
        ("oom", {}),
        ("oom_held", place),
        ("oom_ranks", place),
        ("oom_events", place),
    ]
    with served(tmp_path) as address, served_page(address) as remote:
        for route, asked in questions:
            answer = remote.ask(f"s/{SESSION}/{route}", **asked)
            assert answer.to_pylist() == client.ask(f"s/{SESSION}/{route}", **asked).to_pylist(), route
