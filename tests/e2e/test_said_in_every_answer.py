"""What is not recorded is said in every answer, and how a process ended is told apart: real processes.

Every verb is asked for its text, in CI one in three for its JSON too. Ends that other files of ``e2e`` record
as well (exits, kills) are left to ``make test-long``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from main_job import RANKMEM, RUN, TIMEOUT_S, TORCHRUN, ask, call, rankmem, rows
from repetitions import PROFILE, long_but, some_of

SCRIPT = Path(__file__).parent / "training_scripts/ends_or_fails.py"
MIB = 1 << 20
VERBS = (
    ("peak",), ("peak", "--by", "category"), ("job-peak",), ("ranks",), ("hosts",), ("ops",), ("modules",),
    ("weights",), ("steps",), ("timeline",), ("top", "--once"), ("status",), ("oom",),
)  # fmt: skip


def record(folder: Path, way: str, **settings: str) -> str:
    """Runs the script and returns what was said on stderr."""
    done = call((*RUN, "--", sys.executable, str(SCRIPT), way), folder, **settings)
    assert "held 16777216" in done.stdout
    return done.stderr


def the_rank(folder: Path) -> dict[str, Any]:
    (row,) = rows(folder, "ranks")
    return row


def test_an_agent_that_switches_itself_off_is_said_in_every_answer(tmp_path: Path) -> None:
    said = record(tmp_path, "agent_off")
    assert "0 lost" not in said
    assert "all complete" not in said
    line = "rank 0: the agent switched itself off at "
    assert line in said
    assert "(TypeError: an odd one): nothing after that was recorded" in said
    for verb in VERBS:
        done = ask(tmp_path, *verb)
        assert line in done.stderr, verb
    for verb in some_of(VERBS, 3, " ".join):
        told = ask(tmp_path, *verb, "--format", "json")
        assert all("switched itself off" in row["incomplete"] for row in json.loads(told.stdout)), verb
        assert line in told.stderr, verb
    row = the_rank(tmp_path)
    assert (row["complete"], row["events_lost"], row["state"], row["exit_code"]) == (False, None, "exit", 0)
    assert row["peak_requested_bytes"] < MIB, "what is known; the sentence says that it is at least so much"
    exported = call((*RANKMEM, "export", "html", "report.html"), tmp_path)
    assert line in exported.stderr
    assert "the agent switched itself off" in (tmp_path / "report.html").read_text()


@pytest.mark.long
def test_a_module_that_cannot_be_read_costs_its_name_and_no_byte(tmp_path: Path) -> None:
    said = record(tmp_path, "odd_module")
    assert "0 lost, all complete" in said
    assert "rank 0: modules were not recorded after" in said
    row = the_rank(tmp_path)
    assert row["complete"] is True
    assert row["peak_requested_bytes"] >= 64 * MIB


def test_a_rank_whose_agent_cannot_start_is_there_and_says_why(tmp_path: Path) -> None:
    said = record(tmp_path, "exit", RANKMEM_TAP_CACHE="/proc/nothing")
    assert "rankmem: rank 0: the agent is off: cannot use /proc/nothing" in said
    assert "1 rank, 0 events, an unknown number of events lost, incomplete: rank 0" in said
    assert "rank 0: not recorded (cannot use /proc/nothing" in said
    row = the_rank(tmp_path)
    assert (row["complete"], row["events_lost"]) == (False, None)
    assert row["state"] in ("exit", "exit 3"), "without the tap the code is known where its remains were seen"


ENDS: dict[str, tuple[str, int, str | None]] = {
    "ok": ("exit", 0, None),
    "raise": ("exception", 1, "ValueError"),
    "exit": ("exit 3", 3, None),
    "text": ("exit 1", 1, None),
    "thread": ("exit", 0, None),
    "children": ("exit", 0, None),
}
"""Those that a process tells itself: state, exit code and exception."""
if PROFILE != "long":
    del ENDS["text"], ENDS["thread"]


def test_every_way_that_a_process_ends_itself_is_told_apart(tmp_path: Path) -> None:
    """One after another below a shell: each is an attempt."""
    each = "; ".join(f"{sys.executable} {SCRIPT} {way}" for way in ENDS)
    done = call((*RUN, "--", "sh", "-c", each), tmp_path, timeout_s=2 * TIMEOUT_S)
    assert done.stdout.count("held 16777216") == len(ENDS)
    assert "all complete" in done.stderr
    found = sorted(rows(tmp_path, "ranks"), key=lambda row: int(row["attempt"]))
    ends = [(row["state"], row["exit_code"], row["exception"]) for row in found]
    assert dict(zip(ENDS, ends, strict=True)) == ENDS


@pytest.mark.parametrize(
    ("way", "state", "exit_code", "exception"),
    [
        pytest.param("exit", "exit 3", 3, None, marks=pytest.mark.long),
        pytest.param("at_once", "_exit 5", 5, None, marks=pytest.mark.long),
        ("interrupt", "exception", -2, "KeyboardInterrupt"),
        pytest.param("term", "killed", -15, None, marks=pytest.mark.long),
        pytest.param("kill", "killed", -9, None, marks=pytest.mark.long),
    ],
)
def test_how_the_command_itself_ended_is_told_apart(
    tmp_path: Path, way: str, state: str, exit_code: int, exception: str | None
) -> None:
    said = record(tmp_path, way)
    assert "all complete" in said
    row = the_rank(tmp_path)
    assert (row["state"], row["exit_code"], row["exception"]) == (state, exit_code, exception)


@pytest.mark.parametrize("how", long_but(["once", "raise"], "raise"))
def test_the_summary_of_an_out_of_memory_leads_to_its_answer(tmp_path: Path, how: str) -> None:
    script = SCRIPT.with_name("out_of_memory.py")
    done = call((*RANKMEM, "run", "--", sys.executable, str(script), how), tmp_path)
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("out of memory: ")]
    assert line.startswith("out of memory: 1 allocation failed (rank 0, 1.00 TiB on cpu at +"), how
    assert ": rankmem oom --db rankmem.duckdb --session " in line
    asked = call((*RANKMEM, "diagnose", "--format", "json"), tmp_path)
    first = json.loads(asked.stdout)["rows"][0]
    assert first["kind"] == "oom"
    found = f"finding ({first['certainty']}): {first['sentence']}: rankmem diagnose"
    # On a busy machine the seconds that it may take are over before.
    assert done.stderr.splitlines()[-1].startswith((found, "no finding within 5 s: rankmem diagnose")), how


def test_steps_of_a_session_without_steps_say_why(tmp_path: Path) -> None:
    record(tmp_path, "ok")
    done = ask(tmp_path, "steps")
    assert "no optimizer stepped and rankmem_agent.step() was not called" in done.stderr
    assert rankmem(tmp_path, "steps", "--format", "json") == "[]\n"


def test_ranks_that_are_not_recorded_or_never_reported_are_in_every_answer(
    tmp_path: Path,
) -> None:
    script = SCRIPT.with_name("partly_recorded.py")
    done = call((*RUN, "--", *TORCHRUN, "--nproc-per-node", "3", str(script)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "incomplete: rank 1, never reported: rank 2" in done.stderr
    found = {row["rank"]: (row["state"], row["complete"]) for row in rows(tmp_path, "ranks")}
    assert found[0] == ("exit", True)
    assert (found[1][1], found[2]) == (False, ("never reported", False))
    (session,) = rows(tmp_path, "sessions")
    assert (session["complete"], session["events_lost"]) == (False, None)
    for verb in (("peak",), ("job-peak",), ("ops",), ("timeline",), ("job-peak", "--format", "json")):
        said = ask(tmp_path, *verb).stderr
        assert "rank 1: not recorded (cannot use /proc/nothing" in said, verb
        assert "rank 2: never reported: the launcher announced it" in said, verb


def test_odd_numbers_and_60_000_arguments_cost_those_facts_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.read_text())
    arguments = [f"--argument={number}" for number in range(60_000)]
    odd = {"RANKMEM_PARALLEL": "dp=99999999999,tp=1", "RANK": "0", "WORLD_SIZE": "99999999999"}
    run = (*RUN, "--", sys.executable, str(script), "plain", *arguments)
    done = call(run, tmp_path, **odd, RANKMEM_COMMAND="full")
    assert "held 16777216" in done.stdout
    said = [line for line in done.stderr.splitlines() if "left out" in line]
    assert [line.split(": ")[2].split("=")[0] for line in said] == ["WORLD_SIZE", "dp"], done.stderr
    assert "0 lost, all complete" in done.stderr
    row = the_rank(tmp_path)
    assert (row["complete"], row["state"]) == (True, "exit")
    facts = "SELECT dp, tp, world_size, (SELECT command FROM session) AS command FROM rank_info"
    told = rows(tmp_path, "sql", facts)
    assert [(rank["dp"], rank["tp"], rank["world_size"]) for rank in told] == [(None, 1, None)]
    assert told[0]["command"].endswith(" bytes more)")
