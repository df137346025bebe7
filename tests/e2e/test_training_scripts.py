"""Trainings of others, each with and without the agent: output, exit code, warnings, results, and the record.

What is recorded is held against what the script itself knows of its memory: each storage alive at a moment
with its address and size, and nothing else; the parameters' names; the number of steps.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harmless_runs import SCRIPTS, SESSION, Run, preloaded, without_agent
from repetitions import some_of
from training_cases import CASES, Case
from witnessed import compare, declared

_ADDRESSES = re.compile(r"0x[0-9a-f]{6,}")
_LOG_TIMES = re.compile(r"[WIE]\d{4} [\d:.]+ (\d+ )?|USDT:[\d-]+ [\d:]+ \d+:\d+ ")


def _parameters() -> list[object]:
    marks = {
        case: [
            *([pytest.mark.long] if case.is_long else []),
            *([pytest.mark.xfail(reason=case.fails, strict=True)] if case.fails else []),
        ]
        for case in some_of(CASES, 2, lambda each: each.line)
    }
    return [pytest.param(case, marks=own, id=str(case)) for case, own in marks.items()]


@pytest.mark.parametrize("case", _parameters())
def test_a_training_is_the_same_with_and_without_and_recorded_exactly(case: Case, tmp_path: Path) -> None:
    place = {"PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    plain = without_agent(case.command(), cwd=SCRIPTS, **place, WITNESS=str(tmp_path / "plain"))
    ours = preloaded(case.command(), tmp_path, cwd=SCRIPTS, **place, WITNESS=str(tmp_path / "ours"))
    assert plain.returncode == case.returncode, plain.stderr
    assert _timeless(ours, case) == _timeless(plain, case)
    found = {path.name: path for path in (tmp_path / "spool" / SESSION).glob("*-*-*/")}
    assert len(found) == max(case.ranks, 1)
    if case.testifies:
        for name, path in found.items():
            said = declared(tmp_path / f"ours.{name.split('-')[1]}")
            differences = compare(path, said)
            for size in case.unknown:
                differences.get("more", {}).pop(size, None)
            assert {what: each for what, each in differences.items() if each} == {}


def _timeless(run: Run, case: Case) -> Run:
    """Without what differs between any two runs: addresses, times in logs, the order of ranks' lines."""
    out, err = (
        _LOG_TIMES.sub("", _ADDRESSES.sub("0x", text)).splitlines() for text in (run.stdout, run.stderr)
    )
    if case.ranks:
        out, err = sorted(out), sorted(err)
    return Run(run.returncode, "\n".join(out), "\n".join(err))
