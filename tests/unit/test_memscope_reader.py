"""Dumps of msMemScope, made by hand: blocks of pools, segments of the driver, operators, ranges, stacks."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ascend_files import store_parts
from constructed import SESSION, clear
from memscope_files import BASE_US, Dump, a_dump, as_csv, as_database
from rankmem_imports.formats import FORMATS
from rankmem_imports.probing import probe
from rankmem_imports.recording import Closing, Identity
from rankmem_imports.search import search
from rankmem_protos.errors import RankmemError

READER = FORMATS["memscope"]
Row = tuple[Any, ...]


def imported(connection: duckdb.DuckDBPyConnection, path: Path) -> list[Closing]:
    recordings = READER.open(READER.files(path))
    for rank, recording in enumerate(recordings):
        store_parts(connection, recording, Identity(SESSION, 0, rank))
    return [recording.closing() for recording in recordings]


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    return connection.execute(sql).fetchall()


@pytest.mark.parametrize("form", ["csv", "memscope_dump", "leaks_dump"])
def test_pools_have_blocks_and_the_driver_has_segments(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    dump = a_dump()
    path = as_csv(tmp_path / "d", dump) if form == "csv" else as_database(tmp_path / "d", dump, form)
    [closing] = imported(database, path)
    assert closing == Closing(
        events=6,
        unexplained_bytes=0,
        complete=True,
        remarks=("1 rows of KERNEL_LAUNCH have no memory events",),
    )
    assert rows(
        database,
        "SELECT device, action, component, size_bytes, requested_bytes, allocated_bytes, reserved_bytes "
        "FROM memory_event ORDER BY seq",
    ) == [
        ("npu:0", "segment_alloc", "pytorch", 4096, 0, None, 4096),
        ("pinned", "alloc", "pinned_host", 512, 512, None, None),
        ("npu:0", "alloc", "pytorch", 1024, 1024, 1024, 4096),
        ("npu:0", "alloc", "pytorch", 512, 1536, 1536, 4096),
        ("npu:0", "free_completed", "pytorch", 1024, 512, 512, 4096),
        ("pinned", "free_completed", "pinned_host", 512, 0, None, None),
    ]
    assert rows(database, "SELECT time_ns FROM memory_event ORDER BY seq LIMIT 1") == [
        ((BASE_US + 1) * 1000,)
    ]


def test_a_block_has_the_outermost_operator_and_its_stack(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    imported(database, as_csv(tmp_path / "d.csv", a_dump()))
    found = rows(
        database,
        "SELECT operator, size_bytes, (SELECT list(file_path || ':' || line_number ORDER BY ordering) "
        "FROM stack_frame AS f WHERE f.stack_id = a.stack_id) FROM allocation_record AS a "
        "WHERE device = 'npu:0' ORDER BY allocation_id",
    )
    assert found == [
        ("aten::mm", 1024, ["/work/model.py:7", "/work/train.py:40"]),
        (None, 512, None),
    ]
    assert rows(database, "SELECT operator, started_ns, ended_ns FROM operator_call") == [
        ("aten::mm", (BASE_US + 3) * 1000, (BASE_US + 7) * 1000)
    ]


def test_ranges_and_marks_become_markers(tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    imported(database, as_csv(tmp_path / "d.csv", a_dump()))
    told = "SELECT name, (ended_ns - started_ns) // 1000 FROM marker ORDER BY started_ns"
    assert rows(database, told) == [("step start", 3), ("here", 0)]


def test_each_process_is_a_rank_in_the_order_of_devices(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    path = as_csv(tmp_path / "d.csv", a_dump(100, "1"), a_dump(200, "0"))
    assert [closing.events for closing in imported(database, path)] == [6, 6]
    devices = "SELECT DISTINCT rank, device FROM memory_event WHERE device <> 'pinned' ORDER BY rank"
    assert rows(database, devices) == [(0, "npu:0"), (1, "npu:1")]


def test_without_pools_the_drivers_blocks_are_the_process_own(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    dump = Dump()
    dump.driver(1 << 20, 4096)
    dump.driver(2 << 20, 100)
    dump.driver_free(1 << 20)
    dump.driver_free(3 << 20)
    [closing] = imported(database, as_csv(tmp_path / "d.csv", dump))
    assert closing.remarks == ("1 frees of blocks that no row allocated",)
    assert rows(database, "SELECT component, requested_bytes FROM memory_event ORDER BY seq") == [
        ("app", 4096),
        ("app", 4196),
        ("app", 100),
    ]


HCCL, RUNTIME = 3, 7


@pytest.mark.parametrize("form", ["csv", "memscope_dump"])
def test_what_the_driver_gives_to_libraries_is_theirs_and_in_no_pool(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    dump = Dump()
    dump.driver(1 << 20, 4096)
    dump.driver(2 << 20, 700, module=HCCL)
    dump.driver(3 << 20, 300, module=HCCL)
    dump.driver(4 << 20, 90, module=RUNTIME)
    dump.driver(5 << 20, 8, module=255)
    dump.pool(1 << 20, 1024)
    dump.driver_free(2 << 20)
    path = as_csv(tmp_path / "d", dump) if form == "csv" else as_database(tmp_path / "d", dump)
    [closing] = imported(database, path)
    assert closing.complete
    assert closing.remarks == (
        "3 rows of HCCL on a device became samples of that component: they are in no pool",
        "1 rows of RUNTIME on a device became samples of that component: they are in no pool",
        "1 rows of module 255 on a device became samples of that component: they are in no pool",
    )
    assert rows(database, "SELECT component, action, reserved_bytes FROM memory_event ORDER BY seq") == [
        ("pytorch", "segment_alloc", 4096),
        ("pytorch", "alloc", 4096),
    ]
    assert rows(database, "SELECT component, reserved_bytes FROM component_sample ORDER BY ALL") == [
        ("HCCL", 300),
        ("HCCL", 700),
        ("HCCL", 1000),
        ("RUNTIME", 90),
        ("module 255", 8),
    ]
    peaks = (
        "SELECT group_name, peak_bytes, is_sampled FROM allocator_peak($id, 'component') "
        "WHERE device = 'npu:0' ORDER BY ALL"
    )
    assert database.execute(peaks, {"id": SESSION}).fetchall() == [
        ("HCCL", 1000, True),
        ("RUNTIME", 90, True),
        ("module 255", 8, True),
        ("pytorch", 1024, False),
    ]


def test_newer_dumps_name_the_library_in_the_owner_or_not_at_all(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    dump = Dump()
    for address, owner in ((1 << 20, "owner:CANN@APP"), (2 << 20, "owner:CANN@HCCL@mine"), (3 << 20, "x:y")):
        attributes = f"{{allocation_id:7,addr:{address:#x},size:64,{owner}}}"
        dump.add("MALLOC", "HAL", address=address, attributes=attributes)
    dump.pool(1 << 20, 32)
    imported(database, as_csv(tmp_path / "d.csv", dump))
    assert rows(database, "SELECT component, reserved_bytes FROM component_sample ORDER BY ALL") == [
        ("HAL", 64),
        ("HCCL", 64),
    ]
    assert rows(database, "SELECT max(reserved_bytes) FROM memory_event") == [(64,)]


def test_without_pools_the_drivers_memory_of_libraries_is_of_their_components(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    dump = Dump()
    dump.driver(1 << 20, 4096)
    dump.driver(2 << 20, 700, module=HCCL)
    imported(database, as_csv(tmp_path / "d.csv", dump))
    found = "SELECT component, size_bytes, requested_bytes FROM memory_event ORDER BY seq"
    assert rows(database, found) == [("app", 4096, 4096), ("hccl", 700, 4796)]


def test_what_a_pool_held_before_the_first_row_counts_from_the_beginning(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    dump = Dump()
    dump.used = 3 << 20
    dump.pool(7 << 20, -512, total=100)  # a block that no row allocated
    dump.pool(8 << 20, 2048, total=100)
    dump.driver(9 << 20, 4096)
    dump.used = 50_000  # another pool, which shows up later
    dump.pool(10 << 20, 1000, kind="ATB", total=100)
    [closing] = imported(database, as_csv(tmp_path / "d.csv", dump))
    rest = (3 << 20) - 512
    assert closing.complete
    assert closing.unexplained_bytes == 0
    assert closing.remarks == (
        f"{rest + 50_000} bytes are older than the recording and are kept as one block for each pool",
    )
    events = "SELECT component, requested_bytes, reserved_bytes FROM memory_event ORDER BY seq"
    assert rows(database, events) == [
        ("pytorch", rest + 50_000, None),
        ("pytorch", rest + 50_000 + 2048, None),
        ("pytorch", rest + 50_000 + 2048, None),
        ("atb", rest + 50_000 + 3048, None),
    ]
    older = (
        "SELECT component, size_bytes, allocation_id < 0, address FROM allocation_record WHERE preexisting "
        "ORDER BY ALL"
    )
    assert rows(database, older) == [
        ("atb", 50_000, True, None),
        ("pytorch", 512, True, 7 << 20),
        ("pytorch", rest, True, None),
    ]
    for by in ("component", "stream", "category"):
        told = "SELECT sum(bytes_at_rank_peak), any_value(rank_peak_bytes) FROM peak_by_group($id, $by)"
        [(together, peak)] = database.execute(told, {"id": SESSION, "by": by}).fetchall()
        assert together == peak == rest + 50_000 + 3048


def test_a_total_below_what_is_used_is_not_what_the_pool_reserved(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    dump = Dump()
    dump.pool(1 << 20, 1024, total=4096)
    dump.pool(2 << 20, 8192, total=4096)
    imported(database, as_csv(tmp_path / "d.csv", dump))
    assert rows(database, "SELECT DISTINCT reserved_bytes FROM memory_event") == [(None,)]
    assert rows(database, "SELECT DISTINCT reserved_peak_bytes FROM memory_bucket") == [(None,)]


def test_other_pools_are_components_of_their_own(tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    dump = Dump()
    dump.pool(1 << 20, 100, total=1000)
    dump.used = 0
    dump.pool(2 << 20, 50, kind="ATB", total=500)
    dump.used = 0
    dump.pool(3 << 20, 70, kind="PTA_WORKSPACE", total=70)
    [closing] = imported(database, as_csv(tmp_path / "d.csv", dump))
    assert closing.unexplained_bytes == 0
    found = "SELECT component, requested_bytes, reserved_bytes, pool FROM memory_event ORDER BY seq"
    assert rows(database, found) == [
        ("pytorch", 100, 1000, None),
        ("atb", 150, 1500, None),
        ("workspace", 220, 1570, None),
    ]
    assert rows(database, "SELECT DISTINCT component FROM allocation_record ORDER BY 1") == [
        ("atb",),
        ("pytorch",),
        ("workspace",),
    ]


def by_block(dump: Dump) -> Dump:
    """As newer versions write: all rows of a block when it is freed, those still alive at the end."""
    written = Dump(dump.process, dump.device)
    alive: dict[Any, list[Row]] = {}
    for row in dump.rows:
        if row[1] == "MALLOC":
            alive[row[2], row[8]] = [row]
        elif row[1] == "FREE":
            written.rows += [*alive.pop((row[2], row[8])), row]
        else:
            written.rows.append(row)
    written.rows += [row for rows in alive.values() for row in rows]
    written.rows = [
        (*row[:9], row[9].replace("{addr", "{allocation_id:7,addr"), *row[10:]) for row in written.rows
    ]
    return written


def test_a_dump_written_block_by_block_is_read_in_the_order_of_time(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    told = (
        "SELECT time_ns, action, size_bytes, requested_bytes, allocated_bytes FROM memory_event ORDER BY seq"
    )
    imported(database, as_csv(tmp_path / "d.csv", a_dump()))
    in_order = rows(database, told)
    clear(database)
    shuffled = by_block(a_dump())
    assert [row[4] for row in shuffled.rows] != sorted(row[4] for row in shuffled.rows)
    [closing] = imported(database, as_csv(tmp_path / "b.csv", shuffled))
    assert rows(database, told) == in_order
    assert closing.complete


def test_a_process_on_several_devices_is_one_rank_with_the_files_of_all(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    on_host = Dump()
    on_host.add(
        "MALLOC", "HOST_PINNED", address=64, attributes="{allocation_id:1,size:96,pinned:true}", device="cpu"
    )
    for device, dump in (("0", by_block(a_dump())), ("cpu", on_host)):
        (tmp_path / f"device_{device}" / "dump").mkdir(parents=True)
        as_csv(tmp_path / f"device_{device}" / "dump" / "memscope_dump_1.csv", dump)
    [found] = search([str(tmp_path)]).found
    [closing] = imported(database, found.files[0])
    sizes = "SELECT size_bytes FROM memory_event WHERE device = 'pinned' AND action = 'alloc' ORDER BY ALL"
    assert (closing.events, rows(database, sizes)) == (7, [(96,), (512,)])


def test_rows_of_no_process_are_passed_over(tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    dump = a_dump()
    dump.rows[0] = (*dump.rows[0][:5], "N/A", "N/A", *dump.rows[0][7:])
    assert [closing.events for closing in imported(database, as_csv(tmp_path / "d.csv", dump))] == [6]


@pytest.mark.parametrize("attributes", ["{total_mem:900,free_mem:200}", "{reserved:5,total:900,free:200}"])
def test_a_snapshot_says_what_the_device_has_in_old_and_new_words(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, attributes: str
) -> None:
    dump = a_dump()
    dump.add("SNAPSHOT", "SNAPSHOT", attributes=attributes)
    imported(database, as_csv(tmp_path / "d.csv", dump))
    told = "SELECT device_used_bytes, device_free_bytes, device_total_bytes FROM process_sample"
    assert rows(database, told) == [(700, 200, 900)]


def test_a_dump_is_recognised_by_its_header_or_its_table(tmp_path: Path) -> None:
    assert READER.recognises(probe(as_csv(tmp_path / "x", a_dump())))
    assert READER.recognises(probe(as_database(tmp_path / "y", a_dump())))
    (tmp_path / "z").write_text("ID,Event,Event Type\n1,MALLOC,HAL\n")
    assert not READER.recognises(probe(tmp_path / "z"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: text.index("aten::empty")], "row 5: .* cells|after row"),
        (lambda text: text.replace("size:512,", "size:many,", 1), "row 3.*size is 'many', not a whole"),
        (lambda text: text.replace(str(BASE_US + 1), "9" * 30, 1), r"row 2: Timestamp\(ns\) .* 30 digits"),
        (lambda text: text.replace(",100,", ",ten,", 1), "row 1: Process Id is 'ten'"),
        (lambda text: text.split("\n", 1)[0] + "\n", "no allocation"),
        (lambda text: text.replace("size:1024,", "size:-1024,", 1), "row 6.*a block of -1024 bytes"),
        (lambda text: text.replace("size:512,owner:,MID", "owner:,MID", 1), "row 3.*no size"),
        (
            lambda text: text.replace("size:512,owner:,MID", "size:" + "9" * 16 + ",MID", 1),
            "a block of 9+ bytes",
        ),
        (lambda text: text.replace("used:1024}", "used:-5}", 1), "used is -5"),
        (lambda text: text.replace("used:1024}", "us", 1), "row 6.*cut short"),
        (lambda text: text[:-1].rstrip("\r"), "does not end in a line break"),
        (lambda text: text[: text.rindex(",size:0")] + '"\n', "cells"),
        (lambda text: text[: text.rindex(",size:0")] + '",,\n', "row 15.*cut short"),
    ],
)
def test_a_damaged_dump_is_refused_with_its_name_and_place(tmp_path: Path, damage: Any, said: str) -> None:
    path = as_csv(tmp_path / "d.csv", a_dump())
    path.write_text(damage(path.read_text()))
    with pytest.raises(RankmemError, match=said) as caught:
        read_whole(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert "invalid literal" not in str(caught.value)


def test_json_that_is_cut_is_refused_in_our_words(tmp_path: Path) -> None:
    path = as_database(tmp_path / "d.db", a_dump())
    with sqlite3.connect(path) as database:
        database.execute(
            "UPDATE memscope_dump SET Attr = $cut WHERE ID = 5", {"cut": '{"addr": 1, "size": }'}
        )
    database.close()
    with pytest.raises(RankmemError, match=r"row 6.*are not JSON"):
        read_whole(path)


def read_whole(path: Path) -> None:
    for recording in READER.open([path]):
        assert list(recording.parts(Identity(SESSION, 0, 0)))


@pytest.mark.parametrize("numbered", [True, False])
def test_accesses_tell_when_a_block_was_used(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, numbered: bool
) -> None:
    """By the dump's own number of the block, which hides a wrong address; else by an address within it."""

    def used(address: int, number: int, kind: str = "PTA") -> None:
        mine = f"allocation_id:{number}," if numbered else ""
        shape = f"{{{mine}dtype:torch.float16,shape:torch.Size([1,5]),size:10,type:{kind}}}"
        dump.add("ACCESS", "READ", name="aten.add", address=3 if numbered else address, attributes=shape)

    def made(address: int, size: int, number: int) -> None:
        dump.pool(address, size)
        *begin, attributes, stack, end = dump.rows[-1]
        mine = f"{{allocation_id:{number},"
        dump.rows[-1] = (*begin, attributes.replace("{", mine) if numbered else attributes, stack, end)

    dump = Dump()
    made(4096, 512, 1)  # 0 us
    made(8192, 512, 2)
    used(4096, 1)  # 2
    used(4096 + 500, 1)
    used(4096 + 512, 9)  # of no block
    dump.pool(12288, 512, kind="ATB")  # never used: 5
    used(4096, 1)  # 6
    used(4096, 1)
    dump.pool(4096, -512)
    made(4096, 512, 3)
    used(4096, 3)  # 10, the block that is there now
    [closing] = imported(database, as_csv(tmp_path / "d.csv", dump))
    base = BASE_US * 1000
    assert rows(
        database,
        f"SELECT (r.allocated_ns - {base}) // 1000, uses, (first_used_ns - {base}) // 1000, "
        f"(last_used_ns - {base}) // 1000, (idle_from_ns - {base}) // 1000, (idle_until_ns - {base}) // 1000 "
        "FROM allocation_use AS u JOIN allocation_record AS r USING (rank, device, allocation_id) ORDER BY 1",
    ) == [(0, 4, 2, 7, 3, 6), (9, 1, 10, 10, None, None)]
    assert "1 accesses of blocks that no row allocated" in closing.remarks
    assert not any("ACCESS" in remark for remark in closing.remarks)
