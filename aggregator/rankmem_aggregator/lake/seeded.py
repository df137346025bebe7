"""A lake in which table macros have their answers already: an engine found them.

Stage: query, in the reader's process. In: a lake and rows; out: an instance that answers what reads those
macros. Whatever adds up over ranks is put together so, by its own SQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from rankmem_aggregator.lake.catalog import Catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.sql import view_text

_SIGNATURE: Final = re.compile(r"MACRO \w+(\(.*?\)) AS TABLE", re.DOTALL)
_HELD_AT_TIME: Final = """
SELECT * FROM held_at_points($session, $by, (
    SELECT list({attempt: attempt, rank: rank, device: device, seq: seq})
    FROM held_at($session, $time_ns)
    WHERE ($rank::INTEGER IS NULL OR rank = $rank) AND ($device::VARCHAR IS NULL OR device = $device)
))
"""
_MODULES_AT_PEAK: Final = """
SELECT * FROM held_at_points($session, 'module', (
    SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq})
    FROM peak_by_rank
    WHERE session_id = $session AND is_rank_peak AND ($rank::INTEGER IS NULL OR rank = $rank)
))
"""
SUMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "ops_at_peak": {"held_at_peak": "SELECT * FROM held_at_peak($session, $by, of_rank := $rank::INTEGER)"},
    "ops_at_time": {
        "held_at_points": _HELD_AT_TIME,
        "made_total": "SELECT * FROM made_total($session, $by, of_rank := $rank::INTEGER)",
    },
    "modules": {"held_at_points": _MODULES_AT_PEAK},
}
"""By named query whose ``Scatter`` is ``sums``: the macros that it reads, each with the statement that has
its rows and is answered by hosts."""


class SeededInstance(LakeInstance):
    """A lake with the answers of some macros.

    Args:
        files: of the lake.
        catalog: the files that are read.
        answers: by table macro its rows, whatever it is asked.
    """

    def __init__(self, files: LakeFiles, catalog: Catalog, answers: Mapping[str, pa.Table]) -> None:
        super().__init__(files, catalog)
        for name, rows in answers.items():
            self._connection.register("found_rows", rows)
            self._connection.execute(f"CREATE TABLE found_{name} AS FROM found_rows")
            self._connection.unregister("found_rows")
            # Whether or not it is here already; what reads it looks it up by its name each time.
            self._connection.execute(_found(name))
            self._missing.pop(name, None)


def _found(name: str) -> str:
    """The statement that puts an answer in a macro's place."""
    signature = _SIGNATURE.search(view_text(name))
    assert signature is not None, f"{name} is no table macro"
    return f"CREATE OR REPLACE MACRO {name}{signature[1]} AS TABLE SELECT * FROM found_{name}"
