"""The SQL of rankmem: views and macros installed into every database, and the named queries over them.

Stage: query. In: the ``.sql`` files beside this module, one question a file. Out: their text, their heads
as values (for ``docs/schema.md``), and a database with the views in it. Runs in the aggregator (at open)
and in any process that reads a database. It never puts a value into SQL: values travel as parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, Literal

from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import duckdb

VIEWS: Final = (
    "utc_of",
    "unstreamed",
    "frame_origin",
    "stack",
    "rank_span",
    "rank_loss",
    "memory_event_utc",
    "allocation_life",
    "allocation",
    "meaning_of",
    "group_of",
    "live_at_points",
    "peak_by_rank",
    "peak_by_host",
    "rank_overview",
    "rank_missing",
    "incompleteness",
    "peak_bound",
    "host_overview",
    "session_overview",
    "rank_now",
    "rank_status",
    "memory_curve",
    "held_before",
    "rank_group",
    "group_peak",
    "job_peak",
    "peak_by_ranks",
    "held_at",
    "block_change",
    "group_course",
    "peak_by_group",
    "made_total",
    "held_at_points",
    "held_at_peak",
    "job_peak_held",
    "job_peak_bound",
    "step_total",
    "module_at_peak",
    "weight_line",
    "curve_by_group",
    "app_curve",
    "oom_overview",
    "allocator_curve",
    "allocator_peak",
    "curve_by_ranks",
    "job_curve_by_group",
    "live_at_seq",
    "live_at",
    "allocation_at_peak",
    "live_at_peak",
    "allocation_at",
    "operator_at_peak",
    "operator_total",
    "line_at_peak",
    "kernel_origin",
    "kernel_total",
)
"""Views and macros in the order of their installation: each stands after those it reads."""

MINDSTUDIO: Final = (
    "id_of",
    "device_id",
    "HOST_INFO",
    "RANK_DEVICE_MAP",
    "text_of",
    "STRING_IDS",
    "META_DATA",
    "SESSION_TIME_INFO",
    "STEP_TIME",
    "NPU_INFO",
    "component_total",
    "MEMORY_RECORD",
    "OP_MEMORY",
    "NPU_MEM",
    "ENUM_MODULE",
    "NPU_MODULE_MEM",
    "NPU_OP_MEM",
    "overall_curve",
    "stream_curve",
    "component_curve",
    "component_peak",
    "static_curve",
)
"""Views and macros of the schema ``mindstudio``, in the order of their installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head comment of a ``.sql`` file."""

    question: str
    parameters: tuple[str, ...]
    """One line each: ``name (unit): meaning``."""
    columns: tuple[str, ...]
    """One line each, in the order of the result."""


def install_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Creates or replaces all views and macros in the connection's database.

    The tables of ``rankmem_protos.tables`` must exist. Call inside of a transaction or before the
    database is served: each file is one statement and its comment.
    """
    for name in VIEWS:
        connection.execute(view_text(name))
    connection.execute("CREATE SCHEMA IF NOT EXISTS mindstudio")
    for name in MINDSTUDIO:
        connection.execute(mindstudio_text(name))


@cache
def view_text(name: str) -> str:
    """The text of ``views/{name}.sql``."""
    return _read("views", name)


@cache
def mindstudio_text(name: str) -> str:
    """The text of ``mindstudio/{name}.sql``."""
    return _read("mindstudio", name)


@cache
def statement_text(folder: Literal["packed", "packing", "summaries", "prune"], name: str) -> str:
    """The text of ``{folder}/{name}.sql``, for those of the aggregator's own use.

    Args:
        folder: ``packed``: the view that reads a table of the schema ``packed``; ``packing``: rows named
            ``incoming`` as they stand in it; ``summaries``: a statement of a pass of the summaries;
            ``prune``: one of the deletion of sessions.
    """
    return _read(folder, name)


@cache
def export_text(name: str) -> str:
    """The text of ``exports/{name}.sql``: one statement of ``rankmem export``, with named parameters."""
    return _read("exports", name)


@cache
def query_text(name: str) -> str:
    """The text of ``queries/{name}.sql``: one statement with named parameters.

    Raises:
        RankmemError: NOT_FOUND for a name without a file.
    """
    return _read("queries", name)


def query_names() -> tuple[str, ...]:
    """The names of all named queries, sorted."""
    return tuple(sorted(_names_in("queries")))


def head_of(text: str) -> Head:
    """The head comment of a ``.sql`` file as a value."""
    sections: dict[str, list[str]] = {"Question": [], "Parameters": [], "Columns": []}
    section = "Question"
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        label, colon, rest = line[2:].strip().partition(":")
        if line.startswith("-- ") and line[3:4] != " " and colon and label in sections:
            section = label
            sections[section] += [rest.strip()] if rest.strip() else []
        elif line.startswith("--     ") and sections[section]:
            sections[section][-1] += " " + line[2:].strip()  # a line that goes on
        else:
            sections[section].append(line[2:].strip())
    return Head(
        question=" ".join(sections["Question"]),
        parameters=tuple(sections["Parameters"]),
        columns=tuple(sections["Columns"]),
    )


def _read(folder: str, name: str) -> str:
    if name not in _names_in(folder):
        raise RankmemError(Code.NOT_FOUND, f"no {name}.sql among {folder}", "see docs/sql.md for the names")
    return (resources.files(__package__) / folder / f"{name}.sql").read_text(encoding="utf-8")


@cache
def _names_in(folder: str) -> frozenset[str]:
    files = (resources.files(__package__) / folder).iterdir()
    return frozenset(file.name.removesuffix(".sql") for file in files if file.name.endswith(".sql"))
