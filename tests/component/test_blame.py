"""Statements that ended an aggregator: who is refused, who is only suspected, and what outlives a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rankmem_aggregator.sandbox import running_statements
from rankmem_aggregator.sandbox.running_statements import RunningStatements, fingerprint
from rankmem_aggregator.supervision.crashed_statements import REFUSED_MAX, CrashedStatements, StatementGuard
from rankmem_protos.errors import Code, RankmemError

HOW = "SIGKILL, 2026-11-22 17:00:00 UTC"


def test_a_statement_that_was_alone_is_refused() -> None:
    crashed = CrashedStatements()
    assert crashed.died(["a"], HOW) == 1
    assert (crashed.refused, crashed.suspects) == ({"a": HOW}, set())


def test_of_several_only_one_that_is_there_again_is_refused() -> None:
    crashed = CrashedStatements()
    assert crashed.died(["a", "b"], HOW) == 0
    assert (crashed.refused, crashed.suspects) == ({}, {"a", "b"})
    crashed.cleared("b")
    assert crashed.died(["a", "b", "c"], HOW) == 1
    assert (crashed.refused, crashed.suspects) == ({"a": HOW}, set())


def test_a_death_without_a_statement_blames_none() -> None:
    crashed = CrashedStatements()
    assert crashed.died([], HOW) == 0
    assert (crashed.refused, crashed.suspects) == ({}, set())


def test_the_latest_are_remembered() -> None:
    crashed = CrashedStatements()
    for number in range(REFUSED_MAX + 10):
        crashed.died([str(number)], HOW)
    assert len(crashed.refused) == REFUSED_MAX
    assert "0" not in crashed.refused
    assert str(REFUSED_MAX + 9) in crashed.refused


def test_a_fingerprint_leaves_out_white_space_and_case_and_nothing_else() -> None:
    name = fingerprint("SELECT  1\n FROM t", {"a": 1})
    assert fingerprint("select 1 from T ", {"a": 1}) == name
    assert fingerprint("select 2 from T", {"a": 1}) != name
    assert fingerprint("select 1 from T", {"a": 2}) != name
    assert fingerprint("select 1 from T", {"a": "1"}) != name


@pytest.fixture
def descriptor() -> int:
    return running_statements.shared_memory(2)


def test_a_refused_statement_says_what_happened(descriptor: int) -> None:
    crashed = CrashedStatements(refused={fingerprint("SELECT 1", {}): HOW})
    guard = StatementGuard(RunningStatements(descriptor), crashed, lambda name: None)
    with pytest.raises(RankmemError, match="SIGKILL, 2026") as caught, guard.running("select  1", {}):
        pass
    assert caught.value.code is Code.DENIED
    with guard.running("SELECT 2", {}):
        assert running_statements.take(descriptor) == [fingerprint("SELECT 2", {})]


def test_a_suspect_that_runs_to_its_end_is_cleared_and_one_that_fails_is_not(descriptor: int) -> None:
    good, bad = fingerprint("SELECT 1", {}), fingerprint("SELECT 2", {})
    told: list[str] = []
    guard = StatementGuard(
        RunningStatements(descriptor), CrashedStatements(suspects={good, bad}), told.append
    )
    for _ in range(2):
        with guard.running("SELECT 1", {}):
            pass
        with pytest.raises(ValueError, match="no"), guard.running("SELECT 2", {}):
            raise ValueError("no")
    assert told == [good]


def test_more_statements_than_places_run_all_the_same(descriptor: int) -> None:
    running = RunningStatements(descriptor)
    names = [fingerprint(str(number), {}) for number in range(3)]
    with running.running(names[0]), running.running(names[1]), running.running(names[2]):
        assert running_statements.take(descriptor) == sorted(names[:2])
    with running.running(names[2]):
        assert running_statements.take(descriptor) == [names[2]]
    assert running_statements.take(descriptor) == []


def test_a_statement_that_ended_at_a_limit_stays_until_there_is_room(descriptor: int) -> None:
    running = RunningStatements(descriptor)
    guard = StatementGuard(running, CrashedStatements(), lambda name: None)
    names = [fingerprint(f"SELECT {number}", {}) for number in range(4)]
    for number, code in enumerate((Code.EXHAUSTED, Code.INVALID)):
        with pytest.raises(RankmemError), guard.running(f"SELECT {number}", {}):
            raise RankmemError(code, "ended")
    assert os.pread(descriptor, 64, 0).count(bytes.fromhex(names[0])) == 1
    assert running_statements.take(descriptor) == [names[0]]
    with pytest.raises(RankmemError), guard.running("SELECT 2", {}):
        raise RankmemError(Code.EXHAUSTED, "ended")
    with running.running(names[3]):  # both places were kept: the older is given up
        assert running_statements.take(descriptor) == sorted([names[2], names[3]])
    guard.settled()
    assert running_statements.take(descriptor) == []


def test_what_ran_in_a_process_that_was_killed_is_known(descriptor: int) -> None:
    name = fingerprint("SELECT 1", {})
    script = (
        "import os, signal\n"
        "from rankmem_aggregator.sandbox.running_statements import RunningStatements\n"
        f"with RunningStatements({descriptor}).running({name!r}):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], pass_fds=[descriptor], check=False)
    assert done.returncode == -signal.SIGKILL
    assert running_statements.take(descriptor) == [name]
    os.close(descriptor)
