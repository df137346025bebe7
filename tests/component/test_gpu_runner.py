"""Checks for a GPU run in processes of their own: one that breaks ends no other, and says so."""

from __future__ import annotations

import time
from pathlib import Path

from gpu.checks import Check
from gpu.rows import read
from gpu.runner import Budget, Results, run_all, worst

PROGRAM = """
import argparse, json, os, signal, time
parser = argparse.ArgumentParser()
for name in ("one", "device", "out", "scratch", "kept"):
    parser.add_argument("--" + name)
given = parser.parse_args()
stage, name = given.one.split("/")
with open(given.out + "/results.jsonl", "a") as file:
    if name != "silent":
        row = {"stage": stage, "check": name, "ok": True, "measured": 1, "expected": "", "seconds": 0}
        print(json.dumps(row), file=file)
if name == "crashes":
    os.kill(os.getpid(), signal.SIGSEGV)
if name == "hangs":
    time.sleep(600)
if name == "fails":
    raise SystemExit("it went wrong")
"""


TIMED = """
import json, os, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
began, (stage, name) = time.monotonic(), given["--one"].split("/")
partner = {"a": "b", "b": "a", "c": "d", "d": "c"}.get(name)
open(given["--kept"] + "/" + name, "w").close()
while partner and not os.path.exists(given["--kept"] + "/" + partner):
    time.sleep(0.01)
row = {"stage": stage, "check": name, "ok": True, "measured": [began, time.monotonic()]}
with open(given["--out"] + "/results.jsonl", "a") as file:
    print(json.dumps(row), file=file)
"""
HANGS_S = 4.0


def test_what_runs_as_the_time_for_all_is_over_is_ended_and_is_no_failure(tmp_path: Path) -> None:
    program = tmp_path / "one.py"
    program.write_text(PROGRAM)
    results = Results(folder=tmp_path / "out")
    results.folder.mkdir()
    check = Check(name="hangs", look=lambda place: [], limit_s=2 * HANGS_S)
    budget = Budget(ends=time.monotonic() + 1.2 * HANGS_S)
    run_all([("stage", check)], results, budget, device="cuda", kept=tmp_path, run=program)
    found, over = read(results.rows)
    assert (found.ok, over.ok) == (True, None)
    assert str(over.measured).startswith("stopped as the time for all was over")
    assert worst([found, over]) == 0


def test_a_check_that_crashes_hangs_or_fails_says_so_and_the_next_one_runs(tmp_path: Path) -> None:
    program = tmp_path / "one.py"
    program.write_text(PROGRAM)
    names = ("crashes", "hangs", "fails", "silent", "well")
    checks = [
        ("stage", Check(name=name, look=lambda place: [], limit_s=HANGS_S if name == "hangs" else 60))
        for name in names
    ]
    results = Results(folder=tmp_path / "out")
    results.folder.mkdir()
    budget = Budget(ends=time.monotonic() + 600)
    run_all(checks, results, budget, device="cuda", kept=tmp_path, run=program)
    rows = read(results.rows)
    told = {row.check: str(row.measured) for row in rows if row.ok is False}
    assert told["crashes"].startswith("ended by SIGSEGV")
    assert told["hangs"].startswith("stopped after 4 s")
    assert told["fails"].startswith("ended with exit code 1: it went wrong")
    assert told["silent"].startswith("it found nothing")
    kept = [row.check for row in rows if row.ok]
    assert kept == ["crashes", "hangs", "fails", "well"], "what they had found before is kept"
    assert "it went wrong" in results.log.read_text()
    assert worst(rows) == 1


def test_several_run_at_once_and_one_that_must_be_alone_is(tmp_path: Path) -> None:
    program = tmp_path / "one.py"
    program.write_text(TIMED)
    names = {"a": False, "b": False, "alone": True, "c": False, "d": False}
    checks = [
        ("stage", Check(name=name, look=lambda place: [], limit_s=60, alone=alone))
        for name, alone in names.items()
    ]
    results = Results(folder=tmp_path / "out")
    results.folder.mkdir()
    budget = Budget(ends=time.monotonic() + 600)
    run_all(checks, results, budget, device="cuda", kept=tmp_path, jobs=4, run=program)
    spans = {row.check: row.measured for row in read(results.rows)}
    assert max(spans["a"][0], spans["b"][0]) < min(spans["a"][1], spans["b"][1])
    assert max(spans["a"][1], spans["b"][1]) <= spans["alone"][0]
    assert spans["alone"][1] <= min(spans["c"][0], spans["d"][0])
