"""The table of docs/reliability.md from reports of the tests: ``python tests/faults/table.py REPORT…``."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown, a row for each kind of fault, in order of appearance."""
    by_fault: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        name = line["fault"].rpartition("::")[2].removeprefix("test_")
        by_fault[name.replace("_", " ").replace("[", ": ").removesuffix("]")].append(line)
    rows = [
        "| fault | rounds | events expected | found | lost, told by gap rows | duplicated | recovery, s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for fault, rounds in by_fault.items():
        sums = [sum(line[name] for line in rounds) for name in ("expected", "found", "lost", "duplicated")]
        took = [line["recovery_s"] for line in rounds if line["recovery_s"] is not None]
        recovery = f"{statistics.median(took):.1f} (at most {max(took):.1f})" if took else ""
        figures = " | ".join(f"{value:,}" for value in (len(rounds), *sums))
        rows.append(f"| {fault} | {figures} | {recovery} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table([json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]))
