"""Which of DuckDB's functions a client's SQL may call.

Stage: query, in the sandbox. ``allowed_functions.txt`` beside this module names those that are allowed, one a
line. Every other is refused, so a function of a later DuckDB stays refused until it has been reviewed.
``make functions`` adds those of the installed DuckDB that are on neither list; one that must stay refused
first gets its reason in :data:`REFUSED`. Names that only another version has stay on the list.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import duckdb

_PATH: Final = Path(__file__).with_name("allowed_functions.txt")

REFUSED: Final[dict[str, str]] = {
    **dict.fromkeys(("write_log", "nextval", "setval", "setseed"), "it has effects"),
    **dict.fromkeys(("current_setting", "getenv", "getvariable"), "it reveals the server"),
    **dict.fromkeys(("sleep_ms", "pg_sleep"), "it holds a thread"),
    **dict.fromkeys(
        ("levenshtein", "editdist3", "damerau_levenshtein", "jaro_similarity", "jaro_winkler_similarity"),
        "it cannot be interrupted",
    ),
    **dict.fromkeys(("json_contains", "json_group_structure"), "a deeply nested document ends the database"),
    **dict.fromkeys(("is distinct from", "is not distinct from"), "as an operator its types are checked"),
    **dict.fromkeys(("make_type", "cast_to_type"), "it names types unseen"),
    **dict.fromkeys(
        ("json_serialize_sql", "json_deserialize_sql", "json_serialize_plan", "json_execute_serialized_sql"),
        "it reads statements unseen",
    ),
    **dict.fromkeys(
        ("to_aggregate_state", "finalize", "combine", "combine_aggr", "variant_bytes_to_variant"),
        "it takes raw memory",
    ),
}  # fmt: skip
"""The reason by name. Some end the process (``json_contains`` of a document nested 200,000 deep overflows the
stack) or the instance (an InternalException reports a defect in DuckDB, after which it answers nothing)."""
PREFIXES_REFUSED: Final = {"__internal": "it is internal", "variant_": "no column is a VARIANT"}
"""The optimizer's own functions, which trust their arguments; and those that make a refused type."""
_KNOWN_TO_THE_BINDER: Final = ("unlist", "unnest")
"""Valid as values, though DuckDB lists them as table functions or not at all (2.0.0)."""


@cache
def allowed() -> frozenset[str]:
    """The functions that may be called as a value, in lower case."""
    return frozenset(_PATH.read_text("utf-8").splitlines())


def why_refused(name: str) -> str | None:
    """Why a function, in lower case, must not be called; None for one that is allowed or not listed."""
    by_prefix = (why for prefix, why in PREFIXES_REFUSED.items() if name.startswith(prefix))
    return REFUSED.get(name) or next(by_prefix, None)


def unlisted(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """The descriptions of DuckDB's functions that are neither allowed nor refused, by name."""
    rows = connection.execute(
        "SELECT lower(function_name), coalesce(any_value(description), '') FROM duckdb_functions() "
        "WHERE database_name = 'system' AND function_type IN ('scalar', 'aggregate', 'window', 'macro') "
        "GROUP BY 1 ORDER BY 1"
    ).fetchall()
    found = dict.fromkeys(_KNOWN_TO_THE_BINDER, "") | dict(rows)
    return {name: text for name, text in found.items() if name not in allowed() and not why_refused(name)}


def main() -> None:
    """Adds the unlisted functions to the file and prints them, for review before the commit."""
    with duckdb.connect() as connection:
        new = unlisted(connection)
    _PATH.write_text("".join(f"{name}\n" for name in sorted(allowed() | new.keys())), "utf-8")
    for name, description in new.items():
        print(f"{name}: {description}")


if __name__ == "__main__":
    main()
