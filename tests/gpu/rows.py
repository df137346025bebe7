"""The rows that checks leave: appended to a file as each is found, read back, shown as a table.

Stage: outside the way of the data. A row is one line of JSON, written at once, so that a run that is cut has
what it had until then.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TEXT_MAX = 400
"""Characters of a cell in the table; the file has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one check found of one thing."""

    stage: str
    check: str
    """CHECK: WHAT."""
    ok: bool | None
    """None: a figure without a bound, or something that could not be tried; ``measured`` says which."""
    measured: Any
    expected: str = ""
    seconds: float = 0.0
    """Since the check began."""

    def is_of(self, stage: str, check: str) -> bool:
        """Whether a check of this stage and name found it."""
        return self.stage == stage and self.check.partition(": ")[0] == check

    @property
    def word(self) -> str:
        """For the table."""
        return {True: "ok", False: "FAIL", None: "-"}[self.ok]


def append(path: Path, row: Row) -> None:
    """Adds a row to the file, whole, at once: several processes may do so."""
    line = json.dumps(asdict(row), default=str) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())
        os.fsync(file.fileno())


def read(path: Path) -> list[Row]:
    """All whole rows of the file, in order; none where there is no file."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # the last one, if not empty, was cut
    return [Row(**json.loads(line)) for line in lines]


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, and how many there are of each kind."""
    lines = ["| stage | check | | measured | expected | s |", "|---|---|---|---|---|---:|"]
    lines += [
        f"| {row.stage} | {_cell(row.check)} | {row.word} | {_cell(row.measured)} | {_cell(row.expected)} "
        f"| {row.seconds:.1f} |"
        for row in rows
    ]
    return "\n".join([*lines, "", counts(rows), ""])


def counts(rows: Sequence[Row]) -> str:
    """``12 ok, 1 FAIL, 3 -``."""
    found = Counter(row.word for row in rows)
    return ", ".join(f"{found[word]} {word}" for word in ("ok", "FAIL", "-"))


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.replace("|", "/").split())
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
