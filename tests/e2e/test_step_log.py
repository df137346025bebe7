"""Figures of steps in the trainer itself: those of the database, without a query."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from main_job import call, rows

SCRIPT = """
import json, sys, time
import rankmem
from rankmem.step_log import StepLog

logged = []
with rankmem.record("steps.duckdb"):
    import torch
    model = torch.nn.Linear(256, 256)
    first, second = (torch.optim.SGD([each], lr=0.1) for each in model.parameters())
    memory = StepLog(lambda figures, step: logged.append((step, figures)), every_steps=2)
    memory.begin()
    memory.enter("validation")
    model(torch.ones(8, 256))
    memory.leave("validation")
    for number in range(101, 109):
        model(torch.ones(8 * number, 256)).sum().backward()
        first.step()
        second.step()
        memory.ended(number)
        if number == 104:
            over_s = time.monotonic() + 30
            while len(memory._figures()) < 4 and time.monotonic() < over_s:
                time.sleep(0.05)
    memory.finish()
    heavy = {name.partition(".")[0] for name in sys.modules} & {"grpc", "duckdb", "pyarrow"}
print(json.dumps([logged, sorted(heavy)]))
"""
SQL = "SELECT step, peak_bytes, last_bytes FROM step_bucket WHERE device = 'cpu' ORDER BY step"


def test_what_a_loop_logs_are_the_database_s_figures_of_its_own_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = call([sys.executable, str(script)], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    logged, heavy = json.loads(done.stdout)
    assert heavy == []
    stored = rows(tmp_path, "sql", SQL, "--db", "steps.duckdb")
    assert [row["step"] for row in stored] == list(range(8))  # one for each round of the two optimizers
    assert logged[0][0] <= 106
    assert logged[-1][0] == 108
    begin = 0
    for step, figures in logged:
        window = stored[begin : step - 100]
        assert figures["rankmem/peak_bytes"] == max(row["peak_bytes"] for row in window)
        assert figures["rankmem/last_bytes"] == window[-1]["last_bytes"]
        begin = step - 100
    # The first steps may have ended before the first sample of the host.
    headrooms = [figures.get("rankmem/headroom_bytes") for _, figures in logged]
    assert None not in headrooms[headrooms.count(None) :]
    assert 0 < headrooms[-1] < 1 << 50
    (marker,) = rows(
        tmp_path, "sql", "SELECT name, kind FROM marker WHERE kind = 'annotate'", "--db", "steps.duckdb"
    )
    assert marker["name"] == "validation"


def test_without_a_recording_nothing_is_logged(tmp_path: Path) -> None:
    code = """
import sys
from rankmem.step_log import StepLog
memory = StepLog(print, every_steps=1)
memory.begin()
memory.enter("validation")
memory.leave("validation")
memory.ended(1)
memory.finish()
assert "torch" not in sys.modules
"""
    done = call([sys.executable, "-c", code], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
