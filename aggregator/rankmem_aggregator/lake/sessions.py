"""Which sessions of a lake are over: the same facts and rules as of a database.

Stage: maintenance, in the process of the command line. In: a lake at a version; out: its sessions.
"""

from __future__ import annotations

import time
from typing import Final

from rankmem_aggregator.lake.layout import OPENING
from rankmem_aggregator.lake.queries import LakeQueries
from rankmem_aggregator.retention.limits import StoredSession
from rankmem_aggregator.sql import statement_text

_SHIFTED: Final = """
SELECT DISTINCT o.session_id
FROM ($openings) AS o LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE o.offset_ns IS DISTINCT FROM coalesce(s.offset_ns, 0)
ORDER BY o.session_id
"""


def stored_sessions(queries: LakeQueries) -> list[StoredSession]:
    """The sessions of a lake that an aggregator recorded, oldest first; those of a version if it has one."""
    return [
        StoredSession(session_id=row["session_id"], last_ns=row["last_ns"], final=row["final"])
        for row in queries.sql(statement_text("prune", "sessions")).to_pylist()
    ]


def sessions_over(address: str, version: int) -> frozenset[str]:
    """The ids of the sessions of which no more is expected.

    Args:
        address: of the lake, see :class:`LakeFiles`.
        version: of ``lake_progress``.
    """
    now_ns = time.time_ns()
    with LakeQueries(address, version=version) as queries:
        return frozenset(one.session_id for one in stored_sessions(queries) if one.is_over(now_ns))


def sessions_shifted(address: str, version: int) -> frozenset[str]:
    """The ids of the sessions that were cut by other clock offsets than those of now.

    Args:
        address: of the lake, see :class:`LakeFiles`.
        version: of ``lake_progress``.
    """
    with LakeQueries(address, version=version) as queries:
        rows = queries.sql(_SHIFTED.replace("$openings", queries.rows_of(OPENING)))
        return frozenset(rows["session_id"].to_pylist())
