"""The writer's promises, without gRPC: once, in order, refused alone, acknowledged after the commit."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch import POSITIONS_MAX, IncomingBatch, Spool, decode_batch
from rankmem_aggregator.ingest.batch_queue import BatchQueue, Outcome, Submission
from rankmem_aggregator.ingest.writer import Writer
from rankmem_aggregator.store.store import Store, open_store
from rankmem_protos.arrow_wire import decode_rows, encode_rows
from rankmem_protos.collector_pb2 import Batch, TableRows
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import TABLES
from rankmem_ship.pairing.columns import rows_of
from sample_batches import RankSource

pytestmark = pytest.mark.slow

TIMEOUT_S = 30.0


class Desk:
    """A writer on a real store; batches are queued while it does not run, so that they form one group."""

    def __init__(self, path: Path) -> None:
        self.config = AggregatorConfig(database_path=path, group_wait_s=0.0, group_interval_s=0.0)
        self.store = open_store(self.config)
        self.freed = 0
        self.died: list[BaseException] = []
        self.writer = Writer(self.store, self.config, free_memory=self._free, died=self.died.append)
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self._order: list[int] = []

    def _free(self) -> None:
        self.freed += 1

    def submit(self, source: RankSource, message: Batch) -> None:
        self.submit_decoded(decode_batch(message, spool_of(source)))

    def submit_decoded(self, batch: IncomingBatch) -> None:
        key = (batch.spool.spool_id, len(self._order))
        self._order.append(batch.batch_number)
        assert self.writer.queue.put(
            Submission(batch=batch, done=lambda outcome: self.outcomes.update({key: outcome}))
        )

    def run(self) -> list[RankmemError | int]:
        """Commits what was queued, closes the writer; each batch's error or sequence, in order."""
        self.writer.start()
        self.writer.close(TIMEOUT_S)
        ordered = sorted(self.outcomes.items(), key=lambda item: item[0][1])
        return [outcome.error or outcome.last_sequence for _, outcome in ordered]

    def count(self, table: str) -> int:
        ((number,),) = self.store.cursor().table(table).count("*").fetchall()
        return int(number)


def spool_of(source: RankSource) -> Spool:
    return Spool(
        spool_id=source.spool_id, session_id=source.session_id, attempt=source.attempt, rank=source.rank
    )


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "w.duckdb")
    yield made
    made.writer.close(TIMEOUT_S)
    made.store.close()


def code_of(outcome: RankmemError | int) -> Code | None:
    return outcome.code if isinstance(outcome, RankmemError) else None


def test_batches_of_several_spools_are_stored_in_one_group_and_acknowledged(desk: Desk) -> None:
    sources = [RankSource(rank=rank) for rank in range(3)]
    messages = [(source, source.batch(200)) for _ in range(2) for source in sources]
    for source, message in messages:
        desk.submit(source, message)
    assert desk.run() == [message.sequence_last for _, message in messages]
    assert desk.writer.counters.groups == 1
    expected = sum(pa.ipc.open_stream(m.tables[0].arrow_ipc).read_all().num_rows for _, m in messages)
    assert desk.count("memory_event") == expected
    assert desk.count("rank_info") == 3
    assert desk.count("ingest_progress") == 3


def test_a_batch_sent_twice_in_one_group_is_stored_once_and_acknowledged_twice(desk: Desk) -> None:
    source = RankSource()
    message = source.batch(100)
    for _ in range(3):
        desk.submit(source, message)
    assert desk.run() == [message.sequence_last] * 3
    assert (desk.writer.counters.batches, desk.writer.counters.duplicates) == (1, 2)
    seqs = desk.store.cursor().execute("SELECT count(*), count(DISTINCT seq) FROM memory_event").fetchone()
    assert seqs is not None
    assert seqs[0] == seqs[1] > 0


def test_a_batch_known_from_before_a_restart_is_not_stored_again(tmp_path: Path) -> None:
    source = RankSource()
    message = source.batch(100)
    first = Desk(tmp_path / "w.duckdb")
    first.submit(source, message)
    first.run()
    rows = first.count("memory_event")
    first.store.close()
    again = Desk(tmp_path / "w.duckdb")
    assert again.writer.progress.stored(spool_of(source)) == message.sequence_last
    following = source.batch(50)
    again.submit(source, message)
    again.submit(source, following)
    assert again.run() == [message.sequence_last, following.sequence_last]
    assert again.writer.counters.duplicates == 1
    assert again.count("memory_event") >= rows + 50
    again.store.close()


def test_a_hole_is_refused_as_a_conflict_that_names_both_numbers(desk: Desk) -> None:
    source = RankSource()
    first, lost, third = source.batch(50), source.batch(50), source.batch(50)
    desk.submit(source, first)
    desk.submit(source, third)
    acknowledged, refused = desk.run()
    assert acknowledged == first.sequence_last
    assert code_of(refused) is Code.CONFLICT
    assert str(first.sequence_last) in str(refused)
    assert desk.writer.progress.stored(spool_of(source)) == first.sequence_last == lost.sequence_first - 1


def test_a_batch_that_overlaps_what_is_stored_is_refused(desk: Desk) -> None:
    source = RankSource()
    first = source.batch(50)
    second = source.batch(50)
    second.sequence_first -= 1
    desk.submit(source, first)
    desk.submit(source, second)
    assert code_of(desk.run()[1]) is Code.CONFLICT


def test_a_spool_that_begins_above_0_is_refused_without_a_gap_row_over_what_is_before(desk: Desk) -> None:
    source = RankSource()
    source.batch(50)
    desk.submit(source, source.batch(50))
    assert [code_of(outcome) for outcome in desk.run()] == [Code.CONFLICT]
    assert desk.count("memory_event") == 0


def test_a_spool_whose_beginning_another_database_has_begins_with_its_gap_row(desk: Desk) -> None:
    source = RankSource()
    source.batch(50)
    later = source.batch(50)
    later.tables.append(gap_row(source, 0, later.sequence_first - 1))
    later.sequence_first = 0
    desk.submit(source, later)
    assert desk.run() == [later.sequence_last]
    assert desk.count("gap") == 1


@pytest.mark.parametrize(
    ("told", "last", "is_taken"),
    [
        ([], POSITIONS_MAX - 1, True),
        ([], POSITIONS_MAX, False),
        ([], 2**48, False),
        ([(0, 2**48 - POSITIONS_MAX)], 2**48, True),
        ([(0, 2**40), (0, 2**40)], 2**41 + 1, False),  # what is told twice is missing once
        ([(2**41, 2**40)], 2**41, False),
        ([(-(2**62), 2**62)], 2**48, True),
    ],
)
def test_positions_do_not_jump_further_than_records_and_gap_rows_tell(
    told: list[tuple[int, int]], last: int, is_taken: bool
) -> None:
    source = RankSource()
    gaps = [TABLES["gap"].arrow_schema().empty_table()]
    gaps += [decode_rows("gap", gap_row(source, first, upto).arrow_ipc) for first, upto in told]
    message = Batch(spool_id=source.spool_id, sequence_first=0, sequence_last=last)
    message.tables.add(table="gap", arrow_ipc=encode_rows(pa.concat_tables(gaps)))
    with contextlib.nullcontext() if is_taken else pytest.raises(RankmemError, match=r"no gap row|range of"):
        decode_batch(message, spool_of(source))


def gap_row(source: RankSource, first: int, last: int) -> TableRows:
    who = {"session_id": source.session_id, "attempt": source.attempt, "rank": source.rank}
    row = who | {"sequence_first": first, "sequence_last": last, "records": 1, "why": "other_database"}
    return TableRows(table="gap", arrow_ipc=encode_rows(rows_of("gap", [row])))


def opened(source: RankSource, secret: bytes) -> Spool:
    message = source.open_spool().open_spool
    message.secret = secret
    return Spool.of(message)


def test_who_does_not_have_its_secret_neither_opens_nor_extends_a_spool(desk: Desk) -> None:
    source = RankSource()
    first, second, third = (source.batch(50) for _ in range(3))
    desk.submit_decoded(decode_batch(first, opened(source, b"the rank's")))
    desk.submit_decoded(decode_batch(second, opened(source, b"another's")))
    desk.submit_decoded(decode_batch(second, opened(source, b"")))
    desk.submit_decoded(decode_batch(third, opened(source, b"the rank's")))
    outcomes = desk.run()
    assert outcomes[0] == first.sequence_last
    assert [code_of(outcome) for outcome in outcomes[1:]] == [Code.DENIED, Code.DENIED, Code.CONFLICT]
    for secret in (b"another's", b""):
        with pytest.raises(RankmemError, match="secret"):
            desk.writer.progress.stored(opened(source, secret))
    assert desk.writer.progress.stored(opened(source, b"the rank's")) == first.sequence_last


def test_the_database_keeps_a_hash_of_the_secret_and_knows_it_after_a_restart(tmp_path: Path) -> None:
    source = RankSource()
    first = Desk(tmp_path / "w.duckdb")
    first.submit_decoded(decode_batch(source.batch(50), opened(source, b"the rank's")))
    first.run()
    kept = first.store.cursor().execute("SELECT secret_hash FROM ingest_progress").fetchall()
    assert kept == [(hashlib.sha256(b"the rank's").hexdigest(),)]
    first.store.close()
    again = Desk(tmp_path / "w.duckdb")
    with pytest.raises(RankmemError, match="secret"):
        again.writer.progress.stored(opened(source, b"another's"))
    again.writer.close(TIMEOUT_S)
    again.store.close()


def test_a_spool_that_an_older_version_began_takes_the_first_secret_that_it_is_opened_with(
    desk: Desk,
) -> None:
    source = RankSource()
    first, second, third = (source.batch(50) for _ in range(3))
    desk.submit_decoded(decode_batch(first, opened(source, b"")))
    desk.submit_decoded(decode_batch(second, opened(source, b"new")))
    desk.submit_decoded(decode_batch(third, opened(source, b"")))
    outcomes = desk.run()
    assert outcomes[:2] == [first.sequence_last, second.sequence_last]
    assert code_of(outcomes[2]) is Code.DENIED


def test_the_last_batch_marks_the_spool_as_final(desk: Desk) -> None:
    source = RankSource()
    desk.submit(source, source.batch(50))
    desk.submit(source, source.batch(50, final=True))
    desk.run()
    assert desk.store.cursor().execute("SELECT final FROM ingest_progress").fetchall() == [(True,)]


def test_a_keyed_row_replaces_the_one_before_also_within_a_group(desk: Desk) -> None:
    source = RankSource()
    for _ in range(3):
        desk.submit(source, source.batch(50))
    desk.run()
    rows = desk.store.cursor().execute("SELECT rank, events FROM rank_info").fetchall()
    assert rows == [(0, source.next_sequence)]


def test_rows_the_database_does_not_take_are_refused_alone(desk: Desk) -> None:
    good, bad = RankSource(rank=0), RankSource(rank=1)
    first, wrong, second = good.batch(50), bad.batch(50), good.batch(50)
    decoded = decode_batch(wrong, spool_of(bad))
    table = decoded.rows["memory_bucket"]
    place = table.schema.get_field_index("events")
    # Past every check of ours, so that the database's own NOT NULL is what stops it.
    decoded.rows["memory_bucket"] = table.set_column(
        place, table.schema.field(place), pa.nulls(table.num_rows, pa.int64())
    )
    desk.submit(good, first)
    desk.submit_decoded(decoded)
    desk.submit(good, second)
    outcomes = desk.run()
    assert outcomes[0::2] == [first.sequence_last, second.sequence_last]
    assert code_of(outcomes[1]) is Code.INVALID
    ranks = desk.store.cursor().execute("SELECT DISTINCT rank FROM memory_event").fetchall()
    assert ranks == [(0,)]
    assert desk.writer.progress.stored(spool_of(bad)) == -1


def test_a_commit_without_memory_frees_it_from_clients_and_is_tried_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RankSource()
    message = source.batch(50)
    failures = iter([duckdb.OutOfMemoryException("no memory"), duckdb.IOException("cannot write")])
    write = desk.store.write

    def failing(rows: Mapping[str, pa.Table]) -> None:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        write(rows)

    monkeypatch.setattr(desk.store, "write", failing)
    desk.submit(source, message)
    assert desk.run() == [message.sequence_last]
    assert (desk.freed, desk.writer.counters.retries) == (1, 2)
    assert not desk.died


def test_a_commit_waits_for_room_on_the_disk_instead_of_meeting_its_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RankSource()
    message = source.batch(50)
    free = iter([1000, 2000])

    def usage(path: Path) -> shutil._ntuple_diskusage:
        return shutil._ntuple_diskusage(0, 0, next(free, 1 << 40))

    monkeypatch.setattr("rankmem_aggregator.store.disk.shutil.disk_usage", usage)
    desk.submit(source, message)
    assert desk.run() == [message.sequence_last]
    assert (desk.freed, desk.writer.counters.retries) == (0, 2)


def test_a_failed_commit_leaves_nothing_and_a_close_gives_up_without_an_acknowledgement(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RankSource()
    tried = threading.Event()

    def full(rows: Mapping[str, pa.Table]) -> None:
        tried.set()
        raise duckdb.IOException("No space left on device")

    monkeypatch.setattr(desk.store, "write", full)
    desk.submit(source, source.batch(50))
    desk.writer.start()
    assert tried.wait(TIMEOUT_S)
    assert desk.writer.close(0.0) is False
    assert not any(outcome.error is None for outcome in desk.outcomes.values())
    assert desk.count("memory_event") == 0
    assert desk.writer.progress.stored(spool_of(source)) == -1


def test_a_close_amid_summaries_leaves_no_batch(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    def advance() -> bool:
        if desk.outcomes:
            began.set()
        return bool(desk.outcomes)  # there is always another pass

    monkeypatch.setattr(desk.writer._summaries, "advance", advance)
    source = RankSource()
    desk.submit(source, source.batch(50))
    desk.writer.start()
    assert began.wait(TIMEOUT_S)
    assert desk.writer.close(0.1) is True
    assert desk.count("memory_event") > 0


def test_any_other_failure_of_the_database_ends_the_writer_and_tells_the_service(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(rows: Mapping[str, pa.Table]) -> None:
        raise duckdb.FatalException("database has been invalidated")

    monkeypatch.setattr(desk.store, "write", broken)
    source = RankSource()
    desk.submit(source, source.batch(50))
    desk.run()
    assert [type(exc) for exc in desk.died] == [duckdb.FatalException]
    assert not desk.writer.queue.put(
        Submission(batch=decode_batch(source.batch(10), spool_of(source)), done=lambda outcome: None)
    )


def test_a_group_is_all_that_waits_up_to_its_greatest_size() -> None:
    queue = BatchQueue(batches_max=1000, bytes_max=1 << 40)
    source = RankSource()
    batch = decode_batch(source.batch(100), spool_of(source))

    def fill(rows: int, count: int) -> None:
        for _ in range(count):
            tall = IncomingBatch(
                spool=batch.spool, batch_number=1, sequence_first=0, sequence_last=1, final=False,
                rows=batch.rows, num_rows=2 * rows, tallest_rows=rows, size_bytes=1,
            )  # fmt: skip
            queue.put(Submission(batch=tall, done=lambda outcome: None))

    def take() -> int:
        group = queue.take(rows_max=100_000, bytes_max=1 << 40, wait_s=0.0)
        return len(group or [])

    fill(30_000, 5)
    assert [take(), take()] == [3, 2]
    fill(3_000_000, 2)
    assert [take(), take()] == [1, 1]
    assert len(queue) == 0


def test_encoded_rows_of_one_rank_are_not_taken_for_another() -> None:
    source = RankSource(rank=1)
    message = source.batch(20)
    with pytest.raises(RankmemError, match="rank holds 1") as caught:
        decode_batch(message, spool_of(RankSource(rank=0)))
    assert caught.value.code is Code.INVALID


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("size_bytes", -1, "size_bytes holds -1"),
        ("size_bytes", 2**60, "must be within"),
        ("seq", None, "seq has a NULL"),
        ("action", None, "action has a NULL"),
        ("session_id", "another", "session_id holds .* to 'another'"),
        ("attempt", 7, "attempt holds 0 to 7"),
    ],
)
def test_a_row_with_an_absurd_value_refuses_its_batch(column: str, value: object, named: str) -> None:
    source = RankSource()
    table = source.rows(20)["memory_event"]
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    values = table.column(place).to_pylist()
    values[3] = value
    plain = pa.array(values, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
    changed = table.set_column(place, field, plain.cast(field.type))
    message = Batch(sequence_first=0, sequence_last=9)
    message.tables.add(table="memory_event", arrow_ipc=encode_rows(changed))
    # Encoded tables keep the declared nullability, so the check is ours alone to make.
    with pytest.raises(RankmemError, match=named):
        decode_batch(message, spool_of(source))


@pytest.mark.parametrize(("first", "last"), [(5, 4), (0, 2**63)])
def test_a_range_that_is_none_is_refused(first: int, last: int) -> None:
    with pytest.raises(RankmemError, match="not a range"):
        decode_batch(Batch(sequence_first=first, sequence_last=last), spool_of(RankSource()))


def test_bytes_that_are_no_arrow_and_tables_we_do_not_have_are_refused() -> None:
    source = RankSource()
    for name, data in (("memory_event", b"garbage"), ("memory_event", b""), ("no_such_table", b"")):
        message = Batch(sequence_first=0, sequence_last=1)
        message.tables.add(table=name, arrow_ipc=data)
        with pytest.raises(RankmemError) as caught:
            decode_batch(message, spool_of(source))
        assert caught.value.code is Code.INVALID


def test_a_store_writes_all_tables_of_a_group_or_none(desk: Desk) -> None:
    store: Store = desk.store
    rows = RankSource().rows(50)
    broken = rows["memory_bucket"].set_column(
        0, "session_id", pa.nulls(rows["memory_bucket"].num_rows, pa.string())
    )
    with pytest.raises(duckdb.ConstraintException):
        store.write({"memory_event": rows["memory_event"], "memory_bucket": broken})
    assert desk.count("memory_event") == 0
    store.write({"memory_event": rows["memory_event"]})
    assert desk.count("memory_event") == rows["memory_event"].num_rows


def test_want_of_memory_is_no_fault_of_the_rows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(rows: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(desk.store, "write", short)
    source = RankSource()
    desk.submit(source, source.batch(100))
    desk.writer.start()
    desk.writer.close(TIMEOUT_S)
    assert [type(exc) for exc in desk.died] == [pa.ArrowMemoryError]
    assert all(code_of(o.error) is Code.UNAVAILABLE for o in desk.outcomes.values() if o.error)
    assert desk.writer.counters.refused == 0


@pytest.mark.parametrize("opens_first", [True, False])
def test_two_spools_that_claim_one_rank_are_never_merged(desk: Desk, opens_first: bool) -> None:
    """The second run of a session id, live beside the first; the second's rows are of another attempt."""
    sources = [RankSource(), RankSource()]
    sources[1].spool_id += "7"
    spools = [spool_of(source) for source in sources]
    if opens_first:
        spools = [desk.writer.starts.place(spool) for spool in spools]
    messages = [source.batch(200, final=True) for source in sources]
    for message, spool in zip(messages, spools, strict=True):
        desk.submit_decoded(decode_batch(message, spool))
    outcomes = desk.run()
    first, second = (message.sequence_last for message in messages)
    rows, distinct, attempts = desk.store.cursor().execute(
        "SELECT count(*), count(DISTINCT (session_id, attempt, rank, device, seq)), count(DISTINCT attempt) "
        "FROM memory_event"
    ).fetchall()[0]  # fmt: skip
    assert rows == distinct
    if opens_first:
        assert (outcomes, attempts) == ([first, second], 2)
        assert desk.count("spool_start") == 2
    else:
        assert outcomes[0] == first
        assert code_of(outcomes[1]) is Code.CONFLICT  # opened again, it is given another attempt


def test_what_the_database_forgets_of_deleted_sessions_the_writer_forgets(desk: Desk) -> None:
    """Whoever runs for months with limits on what is kept would hold every log there ever was."""
    source = RankSource()
    spool = spool_of(source)
    desk.submit(source, source.batch(200, final=True))
    desk.run()
    desk.writer._retention.begin(spool.session_id)
    other = replace(spool, spool_id=f"{spool.spool_id}7")
    assert desk.writer.starts.place(other).attempt == 0
    desk.writer._reload()
    assert desk.writer.starts.place(spool).attempt == 0
    with desk.store.transaction() as connection:
        connection.execute("DELETE FROM pruned_spool")
    desk.writer._reload()
    assert desk.writer.starts.place(spool).attempt == 1


def test_a_position_of_a_device_is_one_event() -> None:
    source = RankSource()
    message = source.batch(100)
    rows = {entry.table: decode_rows(entry.table, entry.arrow_ipc) for entry in message.tables}
    events = rows["memory_event"]
    for twice in (pa.concat_tables([events, events.slice(3, 1)]), pa.concat_tables([events, events])):
        message.tables[0].CopyFrom(TableRows(table="memory_event", arrow_ipc=encode_rows(twice)))
        with pytest.raises(RankmemError, match="more than once"):
            decode_batch(message, spool_of(source))
    turned = events.take(pa.array(list(reversed(range(events.num_rows)))))
    message.tables[0].CopyFrom(TableRows(table="memory_event", arrow_ipc=encode_rows(turned)))
    assert decode_batch(message, spool_of(source)).num_events == events.num_rows
