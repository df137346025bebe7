"""Runs one of module_trainings in its own process: each call's module and phase, by frames and by hooks."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rankmem_agent.spool.layout import Kind, Phase
from tap_process import read_spool
from torch_forks import run_forked

SCRIPT = Path(__file__).with_name("module_trainings.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A module's path ("" for none) and a phase."""

    module: str
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All calls of a training."""

    num_calls: int
    num_within_modules: int
    """As frames say."""
    differences: Counter[tuple[str, Said, Said]]
    """(operator, by frames, by hooks) of the calls of which they say different things."""


def compared(training: str, folder: Path, steps: int = 3) -> Comparison:
    """Trains in ``folder``."""
    spool = folder / "spool"
    spool.mkdir()
    done = run_forked(SCRIPT, (training, str(spool), str(steps)), folder)
    if done.returncode != 0 or "rankmem:" in done.stderr:
        raise RuntimeError(done.stderr)
    recording = read_spool(spool, done)
    if recording.gaps:
        raise RuntimeError(f"records are missing: {recording.gaps}")
    begins = recording.of(Kind.CALL_BEGIN)
    differences: Counter[tuple[str, Said, Said]] = Counter()
    for begin in begins:
        by_frames = Said(module=recording.text(begin["b"]) or "", phase=Phase(int(begin["action"])))
        by_hooks = Said(module=recording.text(begin["c"]) or "", phase=Phase(int(begin["device_index"])))
        if by_frames != by_hooks:
            differences[recording.text(begin["e"]) or "", by_frames, by_hooks] += 1
    within = int((begins["b"] != 0).sum())
    return Comparison(num_calls=len(begins), num_within_modules=within, differences=differences)


if __name__ == "__main__":
    import tempfile

    from module_trainings import TRAININGS

    for name in sys.argv[1:] or TRAININGS:
        with tempfile.TemporaryDirectory() as made:
            try:
                found = compared(name, Path(made), 4)
            except RuntimeError as error:
                print(name, "FAILED", str(error)[-1500:], flush=True)
                continue
        print(name, found.num_calls, found.num_within_modules, sum(found.differences.values()), flush=True)
        for difference, count in found.differences.most_common(8):
            print("   ", count, difference)
