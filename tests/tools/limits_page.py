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

PARTS: Final = {
    "In the trainer": ("rankmem_agent.config", "rankmem_agent.hooks", "rankmem_agent.preload",
                       "rankmem_agent.tap", "rankmem_agent.spool"),
    "In the shipper": ("rankmem_ship", "rankmem_ship.pairing"),
    "In an import": ("rankmem_imports",),
    "On the wire": ("rankmem_protos",),
    "In the aggregator": ("rankmem_aggregator",),
    "On the command line": ("rankmem_cli",),
}  # fmt: skip
"""Headings, and the modules whose bounds stand under them."""

HEAD: Final = """\
# Limits

Every queue, buffer, message, wait and query of rankmem ends somewhere. This page is made from the code
(`make docs`), and a test holds it current; a constant that bounds something and has no reason fails the test.
What can be set has its option or variable; the rest are constants, changed in the source with the reason.

What happens at a limit, in short:

- **In the trainer** nothing ever waits: what does not fit is counted and becomes a row of `gap`.
- **In the shipper** a full window means that it reads no further; the spool keeps the rest, up to its budget.
- **In the aggregator** batches wait for room *before* they are decoded, first come, first served. Shippers
  whose batches wait for seconds are told why (`rankmem status` and their log say it) and keep what they have.
  Over its memory budget it takes an eighth of the queue and one new shipper a second; the others try again.
- **A batch** says in its headers how large it is decoded; it is refused by that, before memory is taken.
- **A full disk**: commits wait and are tried again, health turns `NOT_SERVING`, shippers keep their spools.
- **A query** that reaches its time, rows or memory ends with an error that names the limit; ingest goes on.
  DuckDB looks at the time between two vectors of rows: `docs/security.md` says what that leaves.
- **The aggregator's process** has a hard bound on its memory, held by the kernel: what goes beyond fails, or
  ends the process, which is started again within seconds (`docs/security.md`).

What grows with use and not with a limit of its own: the database (see `--keep-days`, `--keep-gib`,
`--keep-sessions`), and what the aggregator remembers of each log and stack in it (some hundred bytes).
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
    """The whole page."""
    parts = [HEAD, "## Settings of the aggregator\n", _table(settings())]
    for heading, modules in PARTS.items():
        found = [bound for path in _sources() for bound in constants(path, modules)]
        if found:
            parts += [f"## {heading}\n", _table(found)]
    return "\n".join(parts)


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


def _table(bounds: list[Bound]) -> str:
    missing = [bound.place for bound in bounds if not bound.reason]
    if missing:
        raise ValueError(f"no reason under {', '.join(missing)}: write one")
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
