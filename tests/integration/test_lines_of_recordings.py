"""Lines and modules of other people's recordings, by a slow look at every frame of every allocation.

The recordings lie outside of the project, at ../shared/recordings; without them these tests are skipped.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from import_read import asked, imported
from rankmem_imports.files.plain_pickle import load_plain

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "recordings"
pytestmark = [
    pytest.mark.recordings,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/recordings"),
]
SNAPSHOTS = sorted((FOLDER / "torch_snapshot").glob("*")) if FOLDER.is_dir() else []
TRACES = [
    path
    for name in ("h100_bert_small", "h100_vit", "mi300_bert_small", "mi300_qwen")
    if (path := FOLDER / "kineto" / f"{name}.json.gz").exists()
]
LIBRARIES = {"torch", *sys.stdlib_module_names}
OPERATOR = re.compile(r"(?!autograd::|torch::autograd::)[A-Za-z_]\w*::[A-Za-z_][\w.]*")
FRAME = re.compile(r"(.*)\((\d+)\): (.*)", re.DOTALL)
Place = tuple[str, int]


def line_of(frames: list[Place]) -> str | None:
    """The nearest of these frames of Python that is the project's, else the nearest, in brackets."""
    own = [
        frame
        for frame in frames
        if not re.search(r"^<|/site-packages/|/lib/python3", frame[0])
        and frame[0].split("/")[0].removesuffix(".py") not in LIBRARIES
    ]
    if own:
        return "{}:{}".format(*own[0])
    return "[{}:{}]".format(*frames[0]) if frames else None


def asked_sums(database: Path, what: str) -> dict[str | None, int]:
    """Bytes allocated within the recording, by a column of blocks and their stacks."""
    return dict(
        asked(
            database,
            f"SELECT {what}, sum(size_bytes)::BIGINT FROM allocation LEFT JOIN stack USING (stack_id) "
            "WHERE NOT preexisting GROUP BY ALL",
        )
    )


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name)
def test_a_snapshots_lines_are_the_projects_and_never_those_of_cpp(path: Path, tmp_path: Path) -> None:
    raw: Any = load_plain(path)
    expected: Counter[str | None] = Counter()
    for entry in (entry for trace in raw["device_traces"] for entry in trace):
        if entry["action"] == "alloc":
            frames = [(frame["filename"], frame["line"]) for frame in entry.get("frames") or []]
            line = line_of([one for one in frames if one[0].endswith(".py") or one[0][:1] == "<"])
            expected[line] += entry["size"]
    database = tmp_path / "lines.duckdb"
    assert imported(database, path).failed == []
    assert asked_sums(database, "line") == expected
    lines = [line for (line,) in asked(database, "SELECT line FROM stack WHERE line IS NOT NULL")]
    assert all(re.search(r"\.py:\d+\]?$", line) or line.startswith("[<") for line in lines)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_traces_allocations_have_the_line_and_the_modules_around_them(path: Path, tmp_path: Path) -> None:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    slices = [event for event in events if event.get("ph") == "X"]
    calls = [event for event in slices if event.get("cat") == "cpu_op"]
    [main] = {event["tid"] for event in events if event.get("name") == "[memory]"}
    python = [event for event in slices if event.get("cat") == "python_function" and event["tid"] == main]
    lines: Counter[str | None] = Counter()
    modules: Counter[str | None] = Counter()
    for event in events:
        if event.get("name") != "[memory]" or event["args"]["Bytes"] < 0:
            continue
        around = [call for call in _around(calls, event["ts"]) if call["tid"] == main]
        named = [call for call in around if OPERATOR.fullmatch(call["name"])]
        call = named[0] if named else around[-1] if around else event
        names = [frame["name"] for frame in _around(python, call["ts"])]
        found = [match for name in reversed(names) if (match := FRAME.fullmatch(name))]
        lines[line_of([(match[1], int(match[2])) for match in found])] += event["args"]["Bytes"]
        within = [name.removeprefix("nn.Module: ") for name in names if name.startswith("nn.Module: ")]
        modules[".".join(within) or None] += event["args"]["Bytes"]
    database = tmp_path / "lines.duckdb"
    assert imported(database, path).failed == []
    assert asked_sums(database, "line") == lines
    assert asked_sums(database, "module") == modules
    classes = {module.rpartition(".")[2].rpartition("_")[0] for module in modules if module}
    assert classes <= {name for (name,) in asked(database, "SELECT class FROM module")}


def _around(slices: list[dict[str, Any]], time: float) -> list[dict[str, Any]]:
    """Those that an instant lies in, the outermost first."""
    found = [one for one in slices if one["ts"] <= time <= one["ts"] + one["dur"]]
    return sorted(found, key=lambda one: (one["ts"], -one["dur"]))
