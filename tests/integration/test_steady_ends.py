"""Steady steps that end badly: nothing is lost of a process that is killed, nor of an out-of-memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rankmem_agent.spool.layout import Kind, Outcome
from rankmem_ship.spool_reader.segments import named
from recorded_models import paired_rows
from shadowed import recorded_steps
from steadied import killed, observed_blocks, report
from tap_process import changes_of

LIVES_MS_MAX = 1500
"""From learning to the third audit."""
OBSERVED_STEPS = 3000
KILLED = "evaluated"
"""A training that leaves steady steps again and again."""


def test_a_killed_process_has_each_block_with_its_stack(tmp_path: Path) -> None:
    hold_kills(tmp_path, 2)


@pytest.mark.long
def test_a_killed_process_has_each_block_with_its_stack_at_fifty_instants(tmp_path: Path) -> None:
    hold_kills(tmp_path, 50)


def hold_kills(folder: Path, rounds: int) -> None:
    (folder / "observed").mkdir()
    observed = observed_blocks(KILLED, folder / "observed", OBSERVED_STEPS)
    for number in range(rounds):
        lives_ms = random.randrange(1, LIVES_MS_MAX)
        own = folder / str(number)
        own.mkdir()
        found = killed(KILLED, own, lives_ms, observed)
        said = f"killed after {lives_ms} ms: {report(KILLED, found)}"
        print(said)
        assert not found.wrong, said
        assert not sum(found.silent[known_by, "stack_id"] for known_by in found.known_by), said
        assert found.known_by["none"] <= 1, said


def test_an_out_of_memory_in_a_steady_step_has_its_operator_module_and_stack(tmp_path: Path) -> None:
    recording = recorded_steps("out_of_memory", tmp_path, 70, audits_every=1000)
    tables = paired_rows(recording)
    ooms = [row for row in tables["memory_event"].to_pylist() if row["action"] == "oom"]
    calls = {row["call_id"]: row for row in tables["operator_call"].to_pylist()}
    frames = {
        (row["stack_id"], row["ordering"]): row["function"] for row in tables["stack_frame"].to_pylist()
    }
    assert len(ooms) == 3
    steady = [change for change in changes_of(recording) if change[1] == Outcome.AUTO]
    assert steady
    for oom in ooms:
        call = calls[oom["call_id"]]
        assert (call["operator"], call["module"]) == ("aten::empty", "1")
        assert "Asking.forward" in [frames[call["stack_id"], nearest] for nearest in range(2)]


def test_a_training_that_never_repeats_is_compared_no_longer(tmp_path: Path) -> None:
    recording = recorded_steps("sparse_experts", tmp_path, 260, audits_every=50)
    parts = named(recording.of(Kind.PART), Kind.PART)
    assert 100 < parts["step"].max() < 240
    assert not changes_of(recording)
