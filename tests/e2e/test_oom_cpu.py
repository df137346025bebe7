"""A training that runs out of memory under ``ulimit -v``: its exception is its own, the record says why."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from main_job import RUN, call, rankmem, rows

SCRIPT = Path(__file__).parent / "training_scripts/out_of_memory.py"
ASKED_AT_ONCE = 1 << 40
BLOCK = 1 << 20


def train(
    folder: Path, how: str
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """The training without and with rankmem."""
    command = (sys.executable, str(SCRIPT), how)
    return call(command, folder), call((*RUN, "--", *command), folder)


def sql(folder: Path, query: str) -> list[dict[str, Any]]:
    """Rows of a query."""
    found: list[dict[str, Any]] = json.loads(rankmem(folder, "sql", query, "--format", "json"))
    return found


@pytest.mark.parametrize(
    ("how", "code"),
    [
        pytest.param("once", 0, marks=pytest.mark.long),
        ("raise", 1),
        pytest.param("kill", 137, marks=pytest.mark.long),
    ],
)
def test_the_exception_is_the_same_and_the_request_is_recorded_with_its_line(
    tmp_path: Path, how: str, code: int
) -> None:
    plain, recorded = train(tmp_path, how)
    assert "tried to allocate 1099511627776 bytes" in plain.stdout
    assert recorded.stdout == plain.stdout
    assert recorded.returncode == code
    if how == "raise":
        assert plain.stderr.splitlines()[-1] in recorded.stderr.splitlines()
    assert "the agent is off" not in recorded.stderr
    (oom,) = sql(tmp_path, "FROM oom")
    assert (oom["size_bytes"], oom["operator"]) == (ASKED_AT_ONCE, "aten::empty")
    assert oom["device_free_bytes"] > 0
    frames = sql(
        tmp_path,
        "SELECT file_path, function, line_number FROM oom JOIN stack_frame USING (stack_id) "
        "ORDER BY ordering",
    )
    asking = next(n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "held.append" in line)
    assert frames[0]["file_path"].endswith("out_of_memory.py")
    assert (frames[0]["function"], frames[0]["line_number"]) == ("Model.forward", asking)
    assert {frame["function"] for frame in frames} >= {"step", "<module>"}
    (made_in,) = sql(tmp_path, "SELECT module, phase, step FROM operator_call JOIN oom USING (call_id)")
    assert made_in == {"module": "Model", "phase": "forward", "step": 4}
    complete(tmp_path)


def test_memory_filled_block_by_block_is_recorded_to_the_last_block(tmp_path: Path) -> None:
    plain, recorded = train(tmp_path, "fill")
    assert f"tried to allocate {BLOCK} bytes" in plain.stdout
    assert recorded.stdout == plain.stdout
    assert recorded.returncode == plain.returncode == 0
    said = re.search(r"^blocks (\d+)$", recorded.stderr, re.MULTILINE)
    assert said is not None
    (oom,) = sql(tmp_path, "FROM oom")
    assert oom["size_bytes"] == BLOCK
    living = f"""FROM allocation WHERE allocation_id < {oom["seq"]}
                 AND (freed_seq IS NULL OR freed_seq > {oom["seq"]})"""
    (blocks,) = sql(tmp_path, f"SELECT count(*) AS count {living} AND size_bytes = {BLOCK}")
    assert blocks["count"] == int(said[1]) > 100
    (total,) = sql(tmp_path, f"SELECT sum(size_bytes)::BIGINT AS bytes {living}")
    assert total["bytes"] == oom["requested_bytes"]
    complete(tmp_path)


def complete(folder: Path) -> None:
    """Nothing is missing in what the rank recorded."""
    (rank,) = rows(folder, "ranks")
    assert (rank["complete"], rank["events_lost"]) == (True, 0)
    assert sql(folder, "FROM gap") == []
