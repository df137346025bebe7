"""docs/limits.md from the code: every constant that bounds something, with its value and its reason.

Stage: documentation. In: the source tree, read and never run, and the aggregator's configuration; out: the
page. A bound is a module's constant whose name says so (see ``BOUND``); its reason stands under it as a
docstring or behind it as a comment, and a bound without a reason is an error. So the page cannot differ from
the code, and nobody can add a bound unseen.

Run as ``python tests/tools/limits_page.py``: writes the page; ``--check``: says whether it is current.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.options import Option, options_of

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "limits.md"
BOUND: Final = re.compile(
    r"(MAX|TIMEOUT_S|SILENCE_S|BACKOFF_\w+|RETRY_\w+|DRAIN_S\w*|SPOOL_BYTES_\w+|SPILL_FACTOR|DEADLINE\w*"
    r"|KEEPALIVE_MS|BUSY_EVERY_S|REMEMBERED_DAYS|RESTART_S|SILENT_S|ALIVE_S|FORGOTTEN_S)(_[A-Z]+)?$"
)
SKIPPED: Final = frozenset(
    {"SEQUENCE_MAX", "_PROTOCOL_MAX", "_U32_MAX", "GUTTER_MAX", "TEXT_CELLS_MAX", "LINE_CHARS_MAX"}
)
"""Of a format or of a picture; nothing grows there."""

PACKAGES: Final = (
    "rankmem_agent", "rankmem_ship", "rankmem_imports", "rankmem_protos", "rankmem_aggregator", "rankmem_cli",
)  # fmt: skip

SHOWN: Final = {
    "In the trainer": (
        "rankmem_agent.config.SPOOL_BYTES_DEFAULT", "rankmem_agent.config.SPOOL_BYTES_MIN",
        "rankmem_agent.config.DRAIN_S_DEFAULT", "rankmem_agent.config.DRAIN_S_MAX",
        "rankmem_agent.spool.layout.STACK_FRAMES_MAX", "rankmem_agent.spool.layout.STRING_BYTES_MAX",
        "rankmem_agent.hooks.weights.WEIGHTS_MAX", "rankmem_agent.tap.build.COMPILE_TIMEOUT_S",
    ),
    "In the shipper": (
        "rankmem_ship.config.DRAIN_S_DEFAULT", "rankmem_ship.config.DRAIN_S_MAX",
        "rankmem_ship.send_buffer.IN_FLIGHT_BYTES_MAX", "rankmem_ship.service.SIGNALLED_DRAIN_S",
        "rankmem_ship.sender.BACKOFF_MAX_S", "rankmem_ship.sender.SILENCE_S",
        "rankmem_ship.pairing.attribution.FORWARD_RECORDS_MAX", "rankmem_ship.pairing.devices.DEVICES_MAX",
        "rankmem_ship.pairing.markers.OPEN_MARKERS_MAX", "rankmem_cli.run.job.DRAIN_S_DEFAULT",
    ),
    "What a stored row may hold": (
        "rankmem_protos.bounds.SIZE_BYTES_MAX", "rankmem_protos.bounds.COUNT_MAX",
        "rankmem_protos.bounds.NUMBER_MAX", "rankmem_protos.bounds.RANKS_MAX",
        "rankmem_protos.bounds.NAME_BYTES_MAX", "rankmem_protos.bounds.TEXT_VALUE_BYTES_MAX",
        "rankmem_protos.bounds.MODULE_BYTES_MAX",
    ),
    "In an import": (
        "rankmem_imports.search.FILES_MAX", "rankmem_imports.files.plain_pickle.PICKLE_BYTES_MAX",
        "rankmem_imports.files.pickle_vetting.CONTAINERS_MAX",
        "rankmem_imports.files.json_events.VALUE_CHARS_MAX",
        "rankmem_imports.tensorflow.stats.TEXT_BYTES_MAX", "rankmem_imports.tensorflow.stats.GZIP_BYTES_MAX",
        "rankmem_imports.replay.FRAMES_MAX", "rankmem_imports.replay.TEXT_BYTES_MAX",
    ),
    "In the aggregator": (
        "rankmem_aggregator.ingest.batch.DECODED_BYTES_MAX", "rankmem_aggregator.ingest.batch.BATCH_ROWS_MAX",
        "rankmem_aggregator.ingest.liveness.ALIVE_S", "rankmem_aggregator.retention.limits.RESTART_S",
        "rankmem_aggregator.retention.limits.SILENT_S", "rankmem_aggregator.retention.delete.REMEMBERED_DAYS",
        "rankmem_aggregator.server.aggregator.MESSAGE_BYTES_MAX",
        "rankmem_aggregator.server.services.EXPORTS_MAX",
        "rankmem_aggregator.server.services.EXPORT_TIMEOUT_S",
        "rankmem_aggregator.server.metrics.CONNECTIONS_MAX", "rankmem_aggregator.server.peers.WATCHES_MAX",
        "rankmem_aggregator.supervision.crashed_statements.REFUSED_MAX",
    ),
    "In a client's statement": (
        "rankmem_aggregator.sandbox.statements.SQL_BYTES_MAX",
        "rankmem_aggregator.sandbox.statement_size.PARTS_MAX",
        "rankmem_aggregator.sandbox.statement_size.JOINED_MAX",
        "rankmem_aggregator.sandbox.functions.TEXT_COUNT_MAX",
        "rankmem_aggregator.sandbox.functions.LIST_COUNT_MAX",
        "rankmem_aggregator.store.instance.SPILL_FACTOR",
    ),
    "In answers, exports and pictures": (
        "rankmem_aggregator.query.timeline.EVENTS_MAX",
        "rankmem_aggregator.query.timeline.EVENTS_BY_GROUP_MAX",
        "rankmem_aggregator.query.timeline.EVENTS_TOGETHER_MAX",
        "rankmem_aggregator.query.timeline.BLOCKS_TOGETHER_MAX",
        "rankmem_aggregator.query.missing.LINES_MAX", "rankmem_aggregator.exports.chrome_trace.ROWS_MAX",
        "rankmem_aggregator.page.kept_questions.RANKS_MAX", "rankmem_aggregator.page.one_file.FILE_BYTES_MAX",
        "rankmem_aggregator.page.answers.sql.SQL_ROWS_MAX",
        "rankmem_aggregator.plots.curves.SERIES_MAX",
    ),
}  # fmt: skip
"""Heading by heading, the bounds that a user can set or meet. The others have their reason in the code."""

HEAD: Final = """\
# Limits

Every queue, buffer, message, wait and query of rankmem is bounded. This page lists the bounds that you can
set or meet. It is made from the code (`make docs`); a test keeps it current, and fails for any constant
that bounds something without giving a reason.

What happens at a limit:

- **In the trainer** nothing ever waits: what does not fit is counted and becomes a row of `gap`.
- **In the shipper** reading stops while the send buffer is full; the spool keeps the rest, up to its
  budget.
- **In the aggregator** batches wait for room *before* they are decoded, first come, first served. Shippers
  whose batches wait for seconds get the reason (`rankmem status` and their log show it) and keep what they
  have. Over its memory budget the aggregator accepts an eighth of the queue and one new shipper per second;
  the others try again.
- **A batch** declares its decoded size in its headers, and is refused by that before memory is taken.
- **A full disk**: commits wait and are repeated, health turns `NOT_SERVING`, shippers keep their spools.
- **A query** that reaches its time, row or memory limit ends with an error that names the limit; ingest
  continues. DuckDB checks the time between two vectors of rows; `docs/security.md` explains what that
  leaves open.
- **The aggregator's process** has a hard bound on its memory, enforced by the kernel: what exceeds it
  fails, or ends the process, which is restarted within seconds (`docs/security.md`).

Two things grow with use and have no limit of their own: the database (see `--keep-days`, `--keep-gib`,
`--keep-sessions`), and what the aggregator remembers of each spool and stack in it (some hundred bytes
each).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One limit."""

    name: str
    value: object
    reason: str
    place: str
    """How to change it: an option, a variable, or where the constant stands."""


def page() -> str:
    """The whole page.

    Raises:
        ValueError: a bound has no reason, or one that is to be shown does not exist.
    """
    found = all_constants()
    _require_reasons(list(found.values()))
    parts = [HEAD, "## Settings of the aggregator\n", _table(settings())]
    for heading, names in SHOWN.items():
        missing = [name for name in names if f"`{name}`" not in found]
        if missing:
            raise ValueError(f"no such bound: {', '.join(missing)}")
        parts += [f"## {heading}\n", _table([found[f"`{name}`"] for name in names])]
    return "\n".join(parts)


def all_constants() -> dict[str, Bound]:
    """Every bound in the code, by its place."""
    return {bound.place: bound for path in _sources() for bound in constants(path, PACKAGES)}


def settings() -> list[Bound]:
    """The numbers of the aggregator's configuration."""
    docs = _docs_of_fields()
    return [
        Bound(
            name=option.name,
            value=option.default,
            reason=f"{option.help} {docs[option.name]}".strip(),
            place=_place(option),
        )
        for option in options_of(AggregatorConfig)
        if isinstance(option.default, int | float) and not option.is_switch
    ]


def constants(path: Path, modules: tuple[str, ...]) -> Iterator[Bound]:
    """The bounds of a file, if its module is one of these."""
    module = _module_of(path)
    if not any(module == name or module.startswith(f"{name}.") for name in modules):
        return
    text = path.read_text("utf-8")
    body = ast.parse(text).body
    comments = _comments(path)
    for place, statement in enumerate(body):
        name = _constant(statement)
        if name is None or name in SKIPPED or not BOUND.search(name):
            continue
        value = _value(module, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        reason = comments.get(statement.lineno, "") or _reason_below(body[place + 1 :])
        yield Bound(name=name, value=value, reason=reason, place=f"`{module}.{name}`")


def shown_value(name: str, value: Any) -> str:
    """The value with its unit, which the name says."""
    lowered = name.lower()
    if value == 0:
        return "0: see there"
    if "bytes" in lowered or lowered.endswith("_chars_max"):
        return _bytes(value) if "bytes" in lowered else f"{value:,}"
    if lowered.endswith("_gib"):
        return f"{value:g} GiB"
    if lowered.endswith("_ms"):
        return f"{value / 1000:g} s"
    if "days" in lowered:
        return f"{value:g} days"
    if re.search(r"_s($|_)", lowered) or lowered.startswith(("backoff", "retry")):
        return f"{value:g} s"
    return f"{value:,}"


def _bytes(value: int) -> str:
    for unit, size in (("PiB", 2**50), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size and value % size == 0:
            return f"{value // size:,} {unit}"
    return f"{value:,} bytes"


def _require_reasons(bounds: list[Bound]) -> None:
    missing = [bound.place for bound in bounds if not bound.reason]
    if missing:
        raise ValueError(f"no reason under {', '.join(missing)}: write one")


def _table(bounds: list[Bound]) -> str:
    _require_reasons(bounds)
    lines = ["| limit | default | why | where |", "|---|---:|---|---|"]
    for bound in bounds:
        words = bound.name.strip("_").lower().replace("_", " ")
        reason = " ".join(bound.reason.split()).replace("|", "\\|")
        reason = reason.replace("``", "`")
        reason = re.sub(r":(?:data|class|meth|func):`([^`]*)`", r"`\1`", reason)
        value = shown_value(bound.name, bound.value)
        lines.append(f"| {words} | {value} | {reason} | {bound.place} |")
    return "\n".join(lines) + "\n"


def _place(option: Option) -> str:
    known = [option.flag] if option.is_on_command_line else []
    known += [option.variable] if option.variable else []
    return ", ".join(f"`{name}`" for name in known) or f"`AggregatorConfig.{option.name}`"


def _docs_of_fields() -> dict[str, str]:
    source = ast.parse((ROOT / "aggregator/rankmem_aggregator/config.py").read_text("utf-8"))
    body = next(s.body for s in source.body if isinstance(s, ast.ClassDef) and s.name == "AggregatorConfig")
    return {
        statement.target.id: _docstring(after)
        for statement, after in itertools.pairwise(body)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _sources() -> Iterator[Path]:
    for package in ("agent", "protos", "aggregator", "cli"):
        yield from sorted(p for p in (ROOT / package).rglob("*.py") if "_pb2" not in p.name)


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _constant(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _value(module: str, name: str) -> object:
    """Read from the module itself: it may be an expression of others."""
    return getattr(importlib.import_module(module), name, None)


def _reason_below(body: list[ast.stmt]) -> str:
    """The docstring under a constant, or under the constants that stand with it."""
    for statement in body:
        if not _constant(statement):
            return _docstring(statement)
    return ""


def _docstring(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""


def _comments(path: Path) -> dict[int, str]:
    with path.open("rb") as file:
        return {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT
        }


def main() -> int:
    """Writes the page, or checks it."""
    made = page()
    if "--check" in sys.argv:
        if PAGE.read_text("utf-8") == made:
            return 0
        print(f"{PAGE} is not current; run: make docs", file=sys.stderr)
        return 1
    PAGE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
