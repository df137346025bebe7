"""The samples of docs/insights.md: what each ``rankmem`` command in it prints about a small job made by hand.

Stage: tests and documentation. In: the page. Out: the same with what follows each ``$ rankmem …`` line
replaced by the command's standard output. ``python tests/tools/insights_page.py`` (``make docs``) rewrites
the page, a test compares. ``JOBS`` has the job of each verb.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
from typer.testing import CliRunner

from allocated_logs import fragmented
from compared_jobs import changed
from constructed import SECOND_NS, RankLog, empty_database, store_logs, store_rows
from ledger_job import shared_device
from oom_job import too_small
from rankmem_aggregator import connect
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from remedied_steps import remedied_steps
from sized_steps import sized_steps

PAGE: Final = Path(__file__).parents[2] / "docs" / "insights.md"
SAMPLE: Final = re.compile(r"```text\n\$ rankmem (.*?)\n.*?```", re.DOTALL)
MIB: Final = 1 << 20
GIB: Final = 1 << 30
GPU: Final = "cuda:0"


def leaking(connection: duckdb.DuckDBPyConnection) -> None:
    """70 steps of a model whose validation keeps its loss with the graph; a ring of batches has filled."""
    log = RankLog(ended=80 * SECOND_NS)
    log.alloc("weights", 8 * GIB, at=1, device=GPU, operator="aten::empty", stack_id=3, category="parameter")
    forward: dict[str, Any] = {"device": GPU, "category": "activation", "phase": "forward"}
    for step in range(70):
        at = (step + 1) * SECOND_NS
        log.alloc(f"a{step}", (20 + step % 3) * GIB, at=at, operator="aten::mm", stack_id=4, **forward)
        log.free(f"a{step}", at=at + 1)
        sizes = {"aten::linear": 6 * MIB, "aten::gelu": 4 * MIB, "aten::layer_norm": 2 * MIB}
        for number, (operator, size) in enumerate(sizes.items()):
            module = f"GPT.h.0.{operator.partition('::')[2]}"
            own = {"operator": operator, "stack_id": 5 + number, "module": module}
            log.alloc(f"{operator}{step}", size, at=at + 2, **own, **forward)
        log.alloc(f"r{step}", 128 * MIB, at=at + 3, device=GPU, operator="aten::stack", stack_id=8)
        if step >= 24:
            log.free(f"r{step - 24}", at=at + 4)
        log.step_ends(step, at=at + 5)
    store_logs(connection, [log])
    lines = {3: 12, 4: 40, 5: 41, 6: 42, 7: 47, 8: 19}
    store_rows(
        connection,
        "stack_frame",
        [
            {
                "stack_id": stack_id,
                "ordering": 0,
                "file_path": "data.py" if stack_id == 8 else "model.py",
                "line_number": line,
                "function": "f",
            }
            for stack_id, line in lines.items()
        ],
    )
    whose = {"session_id": log.session_id, "attempt": 0, "rank": 0, "device": GPU}
    store_rows(connection, "device_info", [whose | {"total_bytes": 80 * GIB}])


def unequal(connection: duckdb.DuckDBPyConnection) -> None:
    """128 ranks in four stages: one rank keeps gradients, and the ranks of one host hold more."""
    logs = []
    for rank in range(128):
        stage = rank // 32
        log = RankLog(rank=rank, host_uid=f"host-{rank // 8}", ended=90)
        log.coordinates = {"pp": stage, "tp": rank % 8, "dp": rank // 8 % 4}
        parts = {"parameter": 6 * GIB, "activation": (8 - 2 * stage) * GIB + rank * 37 % 11 * 4 * MIB}
        if rank == 107:
            parts["gradient"] = 1536 * MIB
        if rank // 8 == 2:
            parts["unknown"] = 700 * MIB + rank % 8 * MIB
        for category, size in parts.items():
            log.alloc(category, size, at=2, device=GPU, category=category, operator=f"aten::{category}")
        logs.append(log)
    store_logs(connection, logs)


def in_pieces(connection: duckdb.DuckDBPyConnection) -> None:
    """A device whose free memory is in pieces that the last requests do not fit."""
    log = fragmented().log
    log.ended = 9 * SECOND_NS
    store_logs(connection, [log])


def two_sizes(connection: duckdb.DuckDBPyConnection) -> None:
    """Steady steps at two batches, on a CPU."""
    store_logs(connection, [sized_steps([8, 8, 8, 16, 16, 16])])


def remediable(connection: duckdb.DuckDBPyConnection) -> None:
    """Steps of four layers that keep more than they give on."""
    log = remedied_steps()
    store_logs(connection, [log])
    whose = {"session_id": log.session_id, "attempt": 0, "rank": 0}
    sizes = {f"layers.{layer}.weight": 2 * MIB for layer in range(4)} | {"head.weight": 3 * MIB}
    weights = [whose | {"name": name, "size_bytes": size} for name, size in sizes.items()]
    store_rows(connection, "weight", weights)


JOBS: Final[dict[str, Callable[[duckdb.DuckDBPyConnection], None]]] = {
    "fragmentation": in_pieces,
    "leaks": leaking,
    "imbalance": unequal,
    "ledger": shared_device,
    "fit": two_sizes,
    "oom": too_small,
    "whatif": remediable,
    "diff": changed,
    "diagnose": too_small,
}
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "fit": {"batch": [64, 128], "recorded": [8, 16], "in_bytes": 1 << 30, "as_device": "cuda"}
}
"""Of the question as tests ask it, which is a finding."""
METHODS: Final = {"oom": "why_oom"}
"""Of ``Queries``, where they are not named after the verb."""


def answered(target: str, verb: str) -> Answer:
    """The answer of a verb about its job at an address."""
    with connect(target) as queries:
        return asked(queries, verb)


def asked(queries: Queries, verb: str) -> Answer:
    """Likewise of what is open already."""
    arguments = ("main", "pull-request") if verb == "diff" else ()
    answer: Answer = getattr(queries, METHODS.get(verb, verb))(*arguments, **ARGUMENTS.get(verb, {}))
    return answer


@cache
def _database(verb: str, folder: str) -> str:
    path = Path(folder) / f"{verb}.duckdb"
    with empty_database(str(path)) as connection:
        JOBS[verb](connection)
    return str(path)


def page() -> str:
    """The page with its samples as they are now."""
    with tempfile.TemporaryDirectory() as folder:
        return SAMPLE.sub(lambda found: _sample(found[1], folder), PAGE.read_text(encoding="utf-8"))


def _sample(command: str, folder: str) -> str:
    words = command.split()
    path = _database(words[0], folder)
    done = CliRunner().invoke(app, words, env={"RANKMEM_DB": path}, catch_exceptions=False)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "\n".join(["```text", f"$ rankmem {command}", *lines, "```"])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
