"""Answers of an aggregator of an older version, whose own views and macros answer our questions.

Stage: query, in the reader's process. In: an answer by groups, or an error; out: the same, or an error that
states the version and what to do. The protocol of queries has no version: it is SQL, and what an older
database lacks shows in what it answers. A macro that does not know a key of ``--by`` gives every block to one
group without a name, which looks like a recording without such names; ``knows_group`` tells the two apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import GROUPINGS

if TYPE_CHECKING:
    import pyarrow as pa

NAMELESS: Final = frozenset({None, "none", "before the recording"})
"""The groups of blocks that have no name."""
LACKING: Final = re.compile(r"Catalog Error|Binder Error|there is no function")
"""DuckDB's and the sandbox's words for a view, macro, parameter or column that the database does not have."""
_HINT: Final = (
    "update the aggregator, or copy its database with rankmem export duckdb FILE and ask the copy: --db FILE"
)


def explained(error: RankmemError, target: str) -> RankmemError:
    """The error of one of our questions; UNSUPPORTED if the database lacks what the question names."""
    if error.code is not Code.INVALID or LACKING.match(error.message) is None:
        return error
    first_line = error.message.partition("\n")[0]
    return RankmemError(Code.UNSUPPORTED, f"{target} is of another version of rankmem: {first_line}", _HINT)


def check_groups(answer: pa.Table, by: str, target: str, knows_group: Callable[[], bool]) -> None:
    """Refuses an answer in one nameless group if the database does not know the grouping.

    Args:
        answer: with a column ``group_name``, if it is one by groups.
        by: the grouping that was asked for.
        target: the database, for the message.
        knows_group: whether it knows the grouping; asked only of an answer without any name.

    Raises:
        RankmemError: UNSUPPORTED.
    """
    if GROUPINGS[by].of != "blocks" or "group_name" not in answer.column_names or not answer.num_rows:
        return
    if set(pc.unique(answer["group_name"]).to_pylist()) <= NAMELESS and not knows_group():
        raise RankmemError(
            Code.UNSUPPORTED, f"{target} is of an older version of rankmem, which cannot group by {by}", _HINT
        )
