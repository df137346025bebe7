"""A database of two sessions, in the newer one of which a rank restarts."""

from __future__ import annotations

from pathlib import Path

from constructed import RankLog, empty_database, store_logs, store_rows

OLD, NEW = "0SESSION000A", "0SESSION000B"


def two_sessions(path: Path) -> Path:
    """Two sessions; in the newer one rank 0 restarts: 150 bytes on its first attempt, 40 on its second."""
    old = RankLog(session_id=OLD, ended=9)
    old.alloc("block", 5, at=1)
    first = RankLog(session_id=NEW, started=100, ended=200)
    first.alloc("weights", 100, at=110, operator="aten::empty", stack_id=1)
    first.alloc("activation", 50, at=120, operator="aten::mm", stack_id=1)
    first.free("activation", at=130)
    second = RankLog(session_id=NEW, attempt=1, started=300)
    second.alloc("weights", 40, at=310, operator="aten::empty")
    other = RankLog(session_id=NEW, rank=1, started=100, ended=200)
    other.alloc("weights", 70, at=125, operator="aten::mm")
    with empty_database(str(path)) as connection:
        store_logs(connection, [old, first, second, other])
        frame = {"stack_id": 1, "ordering": 0, "file_path": "model.py", "line_number": 3, "function": "f"}
        store_rows(connection, "stack_frame", [frame])
        connection.execute("UPDATE host_info SET host_name = 'node'")
    return path
