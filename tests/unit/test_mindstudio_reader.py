"""MindStudio's recordings, made by hand: what the views give back is what the files say, row by row."""

from __future__ import annotations

import contextlib
import gzip
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ascend_files import MB, Story, a_story, store_parts, us, write_csvs, write_database
from constructed import SESSION
from rankmem_imports.formats import FORMATS
from rankmem_imports.probing import probe
from rankmem_imports.recording import Closing, Identity, RankRecording
from rankmem_imports.search import search
from rankmem_protos.errors import RankmemError

pytestmark = pytest.mark.slow

READER = FORMATS["mindstudio"]
OTHERS_WORDS = re.compile(
    "invalid literal|C long|decimal128|conversion error|ascend_|NoneType|argument must be"
)
"""What Python and Arrow say, and the names of our statements."""


def written(story: Story, folder: Path, form: str) -> Path:
    """The story in one of the two forms; one of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    if form == "db":
        write_database(story, folder / "anything.bin")
        return folder / "anything.bin"
    write_csvs(story, folder)
    return folder / "memory_record.csv"


def only(path: Path) -> RankRecording:
    [recording] = READER.open(READER.files(path))
    return recording


def imported(connection: duckdb.DuckDBPyConnection, path: Path, rank: int = 0) -> Closing:
    recording = only(path)
    store_parts(connection, recording, Identity(SESSION, 0, rank))
    return recording.closing()


def read_whole(path: Path) -> None:
    recording = only(path)
    assert recording.facts is not None
    assert list(recording.parts(Identity(SESSION, 0, 0)))


def rows(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters or None).fetchall()


def records(connection: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    return rows(
        connection,
        "SELECT i.value, r.* EXCLUDE (sessionId, attempt, rankId, component) "
        "FROM mindstudio.MEMORY_RECORD AS r "
        "JOIN mindstudio.STRING_IDS AS i ON i.id = r.component ORDER BY ALL",
    )


def in_order(told: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(told, key=lambda row: tuple((value is None, value) for value in row))


@pytest.fixture(params=["db", "csv"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_memory_record_comes_back_row_by_row(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    story = a_story()
    closing = imported(database, written(story, tmp_path, form))
    assert records(database) == in_order(story.told(with_apps=True))
    assert closing.events == len(story.records)
    assert closing.unexplained_bytes == 0
    assert closing.remarks == (
        f"{6 * MB} bytes are older than the recording and are kept as one block for each component",
        "1 allocations have no operator in the recording",
    )


def test_op_memory_comes_back_row_by_row(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    story = a_story()
    imported(database, written(story, tmp_path, form))
    found = rows(
        database,
        "SELECT i.value, o.* EXCLUDE (sessionId, attempt, rankId, name) FROM mindstudio.OP_MEMORY AS o "
        "JOIN mindstudio.STRING_IDS AS i ON i.id = o.name ORDER BY allocationTime",
    )
    cann = "" if form == "db" else "cann::"
    told = [block.row(0) for block in story.blocks]
    assert found == [
        (row[0] if block.component == "PTA" else cann + row[0], *row[1:])
        for block, row in zip(story.blocks, told, strict=True)
    ]


def test_the_blocks_alive_add_up_to_the_total_after_every_event(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    imported(database, written(a_story(), tmp_path, form))
    [(events, agree)] = rows(
        database,
        "SELECT count(*), count(*) FILTER (WHERE e.requested_bytes = l.bytes) "
        "FROM memory_event AS e, LATERAL ("
        "SELECT sum(size_bytes) AS bytes FROM allocation_record AS a WHERE a.allocation_id <= e.seq "
        "AND (a.freed_seq IS NULL OR a.freed_seq > e.seq)) AS l",
    )
    assert events == agree == 17


def test_a_device_holds_what_its_components_hold_together(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    story = a_story()
    imported(database, written(story, tmp_path, form))
    last: dict[str, tuple[int, int, int]] = {}
    expected = []
    for component, _, allocated, reserved, active, *_ in story.records:
        last[component] = (allocated or 0, reserved or 0, active or 0)
        expected.append(tuple(sum(figures) for figures in zip(*last.values(), strict=True)))
    found = "SELECT allocated_bytes, reserved_bytes, active_bytes FROM memory_event ORDER BY seq"
    assert rows(database, found) == expected
    tops = "max(allocated_peak_bytes), max(reserved_peak_bytes), max(active_peak_bytes)"
    assert rows(database, f"SELECT {tops} FROM memory_bucket") == [
        tuple(max(figures) for figures in zip(*expected, strict=True))
    ]


def test_overall_stream_and_component_draw_what_the_records_say(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    story = a_story()
    imported(database, written(story, tmp_path, form))
    started = min(ns for ns, _ in story.apps)
    database.execute(
        "INSERT INTO session BY NAME SELECT $1 AS session_id, 'mindstudio' AS source, $2 AS started_at_ns",
        [SESSION, started],
    )
    names = {"PTA+GE": "Operators", "WORKSPACE": "Workspace"}
    overall, stream, component = [], [], []
    for name, ns, allocated, reserved, active, of_stream, _ in story.told(with_apps=True):
        figures = {"Allocated": allocated, "Activated": active, "Reserved": reserved}
        ms = (ns - started) / 1e6
        if name == "APP":
            overall.append((ms, "App Reserved", (reserved or 0) / MB))
            component.append(overall[-1])
        for figure, value in figures.items():
            if name in names and (name, figure) != ("WORKSPACE", "Activated"):
                overall.append((ms, f"{names[name]} {figure}", (value or 0) / MB))
            if name == "PTA+GE":
                stream.append((ms, f"{figure} of {of_stream}", (value or 0) / MB))
            if name in ("PTA", "GE"):
                component.append((ms, f"{name} {figure}", (value or 0) / MB))
    for view, expected in (("overall", overall), ("stream", stream), ("component", component)):
        found = rows(database, f"SELECT * FROM mindstudio.{view}_curve($id, 0)", id=SESSION)
        assert found == sorted(expected), view


def test_what_a_component_reserved_is_told_without_segments_and_what_a_stream_did_is_not(
    tmp_path: Path, database: duckdb.DuckDBPyConnection, form: str
) -> None:
    story = a_story()
    imported(database, written(story, tmp_path, form))
    curve = "SELECT group_name, max(reserved_bytes) FROM allocator_curve($id, 0, $by) GROUP BY 1 ORDER BY 1"
    assert rows(database, curve, id=SESSION, by="component") == [
        ("ge", 16 * MB),
        ("pytorch", 64 * MB),
        ("workspace", 6 * MB),
    ]
    assert {held for _, held in rows(database, curve, id=SESSION, by="stream")} == {None}


def test_samples_modules_and_steps_come_back(tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    story = a_story()
    imported(database, written(story, tmp_path, "db"))
    assert rows(
        database,
        "SELECT i.value, timestampNs, hbm + ddr FROM mindstudio.NPU_MEM AS n "
        "JOIN mindstudio.STRING_IDS AS i ON i.id = n.type ORDER BY ALL",
    ) == [("app", *row) for row in story.apps] + [("device", *row) for row in story.used]
    assert rows(
        database,
        "SELECT m.name, timestampNs, totalReserved FROM mindstudio.NPU_MODULE_MEM AS n "
        "JOIN mindstudio.ENUM_MODULE AS m ON m.id = n.moduleId ORDER BY ALL",
    ) == sorted(story.modules)
    assert rows(database, "SELECT id, startNs, endNs FROM mindstudio.STEP_TIME ORDER BY id") == story.steps
    assert rows(database, "SELECT id, name FROM mindstudio.NPU_INFO") == [(0, "Ascend910B")]
    assert rows(database, "SELECT step, num_allocations FROM step_bucket ORDER BY step") == [(50, 4), (51, 3)]


def test_a_database_stands_before_the_csv_files_beside_it_but_for_static_graphs(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    story = a_story()
    story.statics = [("TOTAL", "m", "1", 0, 0, MB)]
    written(story, tmp_path, "csv")
    file = written(story, tmp_path, "db")
    files = READER.files(tmp_path / "operator_memory.csv")
    assert len(files) == 5
    [recording] = READER.open(files)
    assert recording.source == file
    counts = store_parts(database, recording, Identity(SESSION, 0, 0))
    assert counts["static_block"] == 1
    assert counts["memory_event"] == len(story.records)
    assert any("have the same content" in remark for remark in recording.closing().remarks)


def test_a_static_graph_is_drawn_as_mindstudio_draws_it(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    story = a_story()
    story.statics = [
        ("TOTAL", "m", "1", 0, 0, 64 * MB),
        ("Add_1", "m", "1", 1, 3, MB),
        ("Mul_2", "m", "1", 2, 4_294_967_295, 2 * MB),
        ("Add_1", "m", "2", 5, 6, 4 * MB),
    ]
    imported(database, written(story, tmp_path, "csv"))
    assert rows(database, "SELECT * FROM mindstudio.static_curve($id, 0, '1')", id=SESSION) == [
        (1, 1.0, 64.0),
        (2, 3.0, 64.0),
        (3, 2.0, 64.0),
        (4, 0.0, 64.0),
    ]


def changed(path: Path, *statements: str) -> Path:
    """A database after someone had a hand in it."""
    write_database(a_story(), path)
    with contextlib.closing(sqlite3.connect(path)) as edited, edited:
        for statement in statements:
            edited.execute(statement)
    edited.close()
    return path


def test_records_of_a_component_without_a_name_are_left_out_and_counted(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    """Counted as an allocator of its own, a nameless PTA+GE would double the total."""
    story = a_story()
    path = changed(tmp_path / "n.db", "DELETE FROM STRING_IDS WHERE value IN ('PTA+GE', 'aten::mm')")
    closing = imported(database, path)
    sums = sum(row[0] == "PTA+GE" for row in story.told(with_apps=False))
    assert f"{sums} records were left out: their component has no name" in closing.remarks
    assert records(database) == in_order(story.told(with_apps=True))
    operators = "SELECT operator FROM allocation_record WHERE size_bytes = 512"
    assert rows(database, operators) == [(None,)]


def test_without_totals_those_at_the_operators_count_and_the_graph_engine_has_no_active_bytes(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    imported(database, changed(tmp_path / "o.db", "DROP TABLE MEMORY_RECORD"))
    assert rows(database, "SELECT count(DISTINCT component) FROM memory_event") == [(2,)]
    last = "arg_max(requested_bytes, seq), arg_max(allocated_bytes, seq)"
    assert rows(database, f"SELECT max(requested_bytes), {last} FROM memory_event") == [
        (11 * MB, 2 * MB + 4096, 2 * MB + 4096)
    ]


def test_what_the_process_held_is_read_from_both_of_its_tables_once(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    story = a_story()
    (known, held), more = story.apps[0], story.apps[-1][0] + 7
    path = changed(
        tmp_path / "a.db",
        "INSERT INTO STRING_IDS VALUES (1, 'APP')",
        f"INSERT INTO MEMORY_RECORD VALUES (1, {known}, NULL, {held}, NULL, NULL, 0)",
        f"INSERT INTO MEMORY_RECORD VALUES (1, {more}, NULL, 77, NULL, NULL, 0)",
    )
    imported(database, path)
    told = "SELECT time_ns, app_reserved_bytes FROM process_sample WHERE app_reserved_bytes > 0 ORDER BY 1"
    assert rows(database, told) == [*story.apps, (more, 77)]


def test_active_bytes_that_nothing_tells_are_unknown_and_drawn_nowhere(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    path = changed(tmp_path / "u.db", "UPDATE MEMORY_RECORD SET totalActive = NULL")
    imported(database, path)
    assert rows(database, "SELECT count(active_bytes), count(allocated_bytes) FROM memory_event") == [(0, 17)]
    assert rows(database, "SELECT max(active_peak_bytes) FROM memory_bucket") == [(None,)]
    legends = "SELECT DISTINCT legend FROM mindstudio.component_curve($id, 0) WHERE legend LIKE '%Activated'"
    assert rows(database, legends, id=SESSION) == []


def test_a_record_without_a_time_is_an_error_that_names_its_table(tmp_path: Path) -> None:
    for table, column in (("MEMORY_RECORD", "timestamp"), ("NPU_MODULE_MEM", "timestampNs")):
        path = changed(tmp_path / f"{table}.db", f"UPDATE {table} SET {column} = NULL WHERE rowid = 2")
        with pytest.raises(RankmemError, match=f"table {table}: the time of a row is empty"):
            read_whole(path)


def test_csv_cells_in_quotes_or_with_blanks_are_read_as_they_are(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    story = a_story()
    path = written(story, tmp_path, "csv")
    for file in tmp_path.glob("*.csv"):
        lines = [line.split(",") for line in file.read_text().splitlines()]
        file.write_text("".join(",".join(f'" {cell}"' for cell in line) + "\n" for line in lines))
    imported(database, path)
    assert records(database) == in_order(story.told(with_apps=True))


def test_the_host_is_known_whether_its_uid_is_text_or_a_number(tmp_path: Path) -> None:
    for uid in ("3538958389648580163", 3538958389648580163):
        path = tmp_path / f"{type(uid).__name__}.db"
        write_database(a_story(5), path, host_uid=uid)
        [recording] = READER.open([path])
        assert (recording.facts.host_uid, recording.facts.host_name) == ("3538958389648580163", "ubuntu")
        assert recording.facts.rank == 5


def test_the_rank_of_csv_files_stands_in_profiler_info(tmp_path: Path) -> None:
    path = written(a_story(), tmp_path / "ASCEND_PROFILER_OUTPUT", "csv")
    assert only(path).facts.rank is None
    info = tmp_path / "profiler_info_3.json"
    info.write_text('{"rank_id": 3}')
    assert only(path).facts.rank == 3
    assert info in READER.files(path)


def test_blocks_whose_other_half_lies_outside_of_the_recording_are_kept(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    story = a_story()
    written(story, tmp_path, "csv")
    older = next(row for row in story.records[9:] if row[0] == "PTA" and (row[2] or 0) < 3 * MB)
    with (tmp_path / "operator_memory.csv").open("a") as file:
        file.write(f"aten::old,-1024.0,,{us(older[1])},,,,,,,2.0,64.0,2.0,99,NPU:0\r\n")
    imported(database, tmp_path / "memory_record.csv")
    assert rows(
        database,
        "SELECT size_bytes, allocated_ns, freed_ns, preexisting FROM allocation_record "
        "WHERE operator = 'aten::old'",
    ) == [(MB, None, older[1], True)]


def test_operators_alone_make_a_log(tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    story = a_story()
    written(story, tmp_path, "csv")
    (tmp_path / "memory_record.csv").unlink()
    closing = imported(database, tmp_path / "operator_memory.csv")
    times = sum((block.row(0)[2:5].count(None) for block in story.blocks), 0)
    assert closing.events == 3 * len(story.blocks) - times
    told = {(b.allocated, b.at_alloc[0]) for b in story.blocks if b.component == "PTA"}
    found = rows(
        database,
        "SELECT timestamp, totalAllocated FROM mindstudio.MEMORY_RECORD "
        "WHERE component = mindstudio.id_of('PTA')",
    )
    assert told <= set(found)


def test_rows_in_any_order_and_of_one_instant_are_put_in_order(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    story = Story()
    one = story.malloc("aten::mm", 512)
    two = story.malloc("aten::mm", 1024)
    story.tick(-370)
    two.allocated = one.allocated
    story.records[1] = (story.records[1][0], story.records[0][1], *story.records[1][2:])
    story.free(one)
    story.free(two)
    write_csvs(story, tmp_path)
    path = tmp_path / "memory_record.csv"
    header, *lines = path.read_text().splitlines()
    pairs = [lines[i : i + 2] for i in range(0, len(lines), 2)]
    path.write_text("\n".join([header, *(line for pair in pairs[2:] + pairs[:2] for line in pair)]) + "\n")
    closing = imported(database, path)
    assert closing.unexplained_bytes == 0
    assert records(database) == in_order(story.told(with_apps=True))
    made = "SELECT size_bytes, allocation_id, freed_seq FROM allocation_record"
    assert rows(database, f"{made} WHERE operator IS NOT NULL ORDER BY 2") == [(512, 1, 3), (1024, 2, 5)]


def test_sums_that_differ_from_their_parts_are_counted(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    path = written(a_story(), tmp_path, "db")
    with contextlib.closing(sqlite3.connect(path)) as written_database, written_database:
        written_database.execute(
            "UPDATE MEMORY_RECORD SET totalAllocated = totalAllocated + 1 WHERE rowid IN (2, 4)"
        )
    closing = imported(database, path)
    assert any("2 of " in remark and "sums" in remark for remark in closing.remarks)


def test_msprof_writes_kilobytes(tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    (tmp_path / "memory_record_20250109.csv").write_text(
        "Component,Timestamp(us),Total Allocated(KB),Total Reserved(KB),Device\n"
        "GE,1736405443881360.63,512.0,1024.0,NPU:3\n"
    )
    imported(database, tmp_path / "memory_record_20250109.csv")
    assert rows(
        database, "SELECT time_ns, device, component, allocated_bytes, reserved_bytes FROM memory_event"
    ) == [(1_736_405_443_881_360_630, "npu:3", "ge", 512 << 10, 1 << 20)]
    assert rows(database, "SELECT totalAllocated FROM mindstudio.MEMORY_RECORD") == [(512 << 10,)]


def test_databases_of_several_ranks_in_one_folder_are_a_rank_each(tmp_path: Path) -> None:
    for rank in range(3):
        write_database(a_story(rank), tmp_path / f"ascend_pytorch_profiler_{rank}.db")
    write_csvs(a_story(0), tmp_path)
    found = search([str(tmp_path)]).found
    recordings = [recording for one in found for recording in one.format.open(one.files)]
    assert [recording.facts.rank for recording in recordings] == [0, 1, 2]
    assert all(recording.source.suffix == ".db" for recording in recordings)


def test_slices_of_a_table_are_read_in_order(tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    story = a_story()
    path = written(story, tmp_path, "csv")
    header, *lines = path.read_text().splitlines()
    for number in range(11):
        part = [header, *lines[len(lines) * number // 11 : len(lines) * (number + 1) // 11]]
        (tmp_path / f"memory_record_slice_{number}_20250109.csv").write_text("\n".join(part) + "\n")
    path.unlink()
    closing = imported(database, tmp_path / "memory_record_slice_3_20250109.csv")
    assert records(database) == in_order(story.told(with_apps=True))
    assert closing.unexplained_bytes == 0


def test_a_second_file_of_a_kind_is_left_out_and_said(
    tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    path = written(a_story(), tmp_path, "csv")
    (tmp_path / "memory_record_of_another.csv").write_bytes(path.read_bytes())
    closing = imported(database, path)
    assert any("memory_record_of_another.csv was left out" in remark for remark in closing.remarks)


def test_compressed_csv_files_are_read(tmp_path: Path, database: duckdb.DuckDBPyConnection) -> None:
    story = a_story()
    path = written(story, tmp_path / "plain", "csv")
    packed = tmp_path / "memory_record.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    imported(database, packed)
    assert records(database) == in_order(story.told(with_apps=True))


def test_a_file_is_recognised_by_what_it_holds(tmp_path: Path, form: str) -> None:
    path = written(a_story(), tmp_path, form)
    assert READER.recognises(probe(path))
    other = tmp_path / "memory_record.txt"
    other.write_text("Component,Weight\nPTA,1\n")
    assert not READER.recognises(probe(other))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda text: text.replace("PTA,17", "PTA,x17", 1),
            r"line 4: Timestamp\(us\) is 'x17\d+\.\d+', not a number",
        ),
        (
            lambda text: text.replace(",64.0,", ",sixty,", 1),
            r"line 4: Total Reserved\(MB\) is 'sixty', not a number",
        ),
        (
            lambda text: text.replace(".120\t,", ".1205\t,", 1),
            r"Timestamp\(us\) has more than three decimals",
        ),
        (lambda text: text[: len(text) // 2].rsplit(",", 3)[0] + "\r\n", r"line \d+: [1-6] cells of 7"),
        (lambda text: text.replace(",NPU:0", ",NPU:", 1), "Device Type holds 'NPU:', not a device"),
        (lambda text: text.replace("\r\nPTA,", "\r\n,", 1), "component is empty"),
        (lambda text: text.replace(",64.0,", ",9e300,", 1), "more than 64 bits"),
        (lambda text: text.replace("PTA,17", "PTA,9917", 1), "more than 64 bits"),
        (lambda text: text.replace(",99,", ",zz,", 1), "Stream Ptr holds 'zz'"),
        (lambda text: text.split("\r\n")[0] + "\r\n", "no memory record"),
    ],
)
def test_a_damaged_csv_file_is_refused_with_its_name_and_place(
    tmp_path: Path, damage: Any, said: str
) -> None:
    path = written(a_story(), tmp_path, "csv")
    for other in ("operator_memory.csv", "npu_module_mem.csv"):
        (tmp_path / other).unlink()
    path.write_bytes(damage(path.read_bytes().decode()).encode())
    with pytest.raises(RankmemError, match=said) as caught:
        read_whole(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert not OTHERS_WORDS.search(str(caught.value))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "name", ["memory_record.csv", "operator_memory.csv", "npu_module_mem.csv", "static_op_mem.csv"]
)
def test_a_csv_file_that_is_cut_in_its_last_cell_is_refused(tmp_path: Path, name: str, packed: bool) -> None:
    story = a_story(12)
    story.statics = [("TOTAL", "m", "1", 0, 0, MB)]
    written(story, tmp_path, "csv")
    path = tmp_path / name
    whole = path.read_bytes()
    for cut in (whole[:-3], whole[:-2]):  # NPU:1 for NPU:12; all of it but for the end of the line
        path.write_bytes(gzip.compress(cut) if packed else cut)
        with pytest.raises(
            RankmemError, match="does not end in a line break: its last row may be cut"
        ) as caught:
            read_whole(path)
        assert str(path) in str(caught.value)
    path.write_bytes(gzip.compress(whole) if packed else whole)
    read_whole(path)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "DROP TABLE MEMORY_RECORD; DROP TABLE OP_MEMORY; DROP TABLE NPU_MEM; DROP TABLE NPU_MODULE_MEM",
            "none of",
        ),
        (
            "UPDATE MEMORY_RECORD SET totalAllocated = 'much' WHERE rowid = 3",
            "MEMORY_RECORD holds 'much', not a whole number",
        ),
        ("UPDATE OP_MEMORY SET size = 9e999 WHERE rowid = 3", "OP_MEMORY holds 'inf', not a whole"),
        ("UPDATE OP_MEMORY SET size = NULL WHERE rowid = 3", "OP_MEMORY: the size of a row is empty"),
        ("UPDATE NPU_MEM SET hbm = x'ff' WHERE rowid = 1", "NPU_MEM holds .* not a whole number"),
        ("UPDATE NPU_MEM SET ddr = 'none' WHERE rowid = 1", "NPU_MEM holds 'none', not a whole"),
        ("UPDATE STEP_TIME SET startNs = 'soon'", "STEP_TIME holds 'soon', not a whole number"),
        ("UPDATE NPU_INFO SET id = 1.5", "NPU_INFO holds '1.5', not a device"),
        (
            "UPDATE NPU_MODULE_MEM SET deviceId = 1.5 WHERE rowid = 1",
            "deviceId holds '1.5', not a device",
        ),
        ("UPDATE MEMORY_RECORD SET timestamp = 9223372036854775807 WHERE rowid = 3", "19 digits"),
        ("ALTER TABLE MEMORY_RECORD DROP COLUMN totalReserved", "no such column"),
    ],
)
def test_a_damaged_database_is_refused_with_its_name(tmp_path: Path, statement: str, said: str) -> None:
    path = written(a_story(), tmp_path, "db")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executescript(statement)
    with pytest.raises(RankmemError, match=said) as caught:
        read_whole(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert not OTHERS_WORDS.search(str(caught.value))
