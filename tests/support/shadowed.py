"""Runs one of steady_trainings in its own process: what a block's twin says, held against what was seen.

``python shadowed.py [TRAINING ...]`` prints the comparison of each. A twin is the block of an earlier step
that the tap found to be like it (rankmem_ship.parts). What a part says is seen twice: as it is learned, and
in the first step that is like it, since the first batch of a line has no category yet. From the third on it
is held against what was seen.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_agent.spool.layout import Action, Kind
from rankmem_ship.parts import Likeness, twins_of
from rankmem_ship.spool_reader.reader import Gap
from recorded_models import paired_rows
from tap_process import Recording, read_spool
from torch_forks import run_forked

SCRIPT = Path(__file__).with_name("steady_trainings.py")
IDENTITY: Final = ("operator", "module", "phase", "stack_id", "forward_stack_id", "recomputed")
"""What a twin says of a block whatever becomes of it; the category besides, where both lived alike."""

Row = Mapping[str, Any]
Life = tuple[int, int, int] | None
"""Steps from alloc to free, blocks that the trainer's thread had allocated in that step, the thread of the
free. None: alive."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    """All blocks of a training, from its second step on.

    Of threads that show where they are: those that end steps, and those of autograd.
    """

    num_blocks: int = 0
    num_whole: int = 0
    """Of these, in a part like another one as a whole."""
    num_beginning: int = 0
    wrong: Counter[tuple[str, Any, Any]] = field(default_factory=Counter)
    """(column, by the twin, as seen) of blocks in whole parts."""
    wrong_elsewhere: Counter[tuple[str, Any, Any]] = field(default_factory=Counter)
    """Likewise, on other threads."""
    doubtful: Counter[tuple[str, Any, Any]] = field(default_factory=Counter)
    """(column, first, then) in which the two steps that a part is seen in differ."""
    wrong_beginning: Counter[tuple[str, Any, Any]] = field(default_factory=Counter)
    num_alike: int = 0
    """Blocks in whole parts that lived as their twins did."""
    wrong_category: Counter[tuple[Any, Any, Any]] = field(default_factory=Counter)
    """(operator, by the twin, as seen) of these."""
    wrong_category_otherwise: int = 0
    """Categories that differ where the lives do."""


def shadowed(training: str, folder: Path, steps: int = 12, device: str = "cpu") -> Comparison:
    """Trains in ``folder``, on ``cpu`` or ``cuda``, and compares."""
    return compared(recorded_steps(training, folder, steps, device))


def recorded_steps(
    training: str,
    folder: Path,
    steps: int,
    device: str = "cpu",
    audits_every: int = 0,
    lives_ms: int = 0,
) -> Recording:
    """One of steady_trainings, recorded in ``folder``; with ``lives_ms`` it is killed."""
    spool = folder / "spool"
    spool.mkdir()
    arguments = (training, str(spool), str(steps), device, str(audits_every), str(lives_ms))
    if device == "cpu":
        done = run_forked(SCRIPT, arguments, folder)
    else:
        command = [sys.executable, str(SCRIPT), *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if (done.returncode != 0 and not lives_ms) or "rankmem:" in done.stderr:
        raise RuntimeError(done.stderr)
    recording = read_spool(spool, done)
    gaps = [gap for gap in recording.gaps if not (lives_ms and _is_under_way(gap, recording))]
    if gaps:
        raise RuntimeError(f"records are missing: {gaps}")
    return recording


def _is_under_way(gap: Gap, recording: Recording) -> bool:
    """Whether a kill came while this record, the log's last, was written."""
    return gap.why == "torn" and gap.sequence_first == gap.sequence_last > recording.seq[-1]


def compared(recording: Recording) -> Comparison:
    """Each block against its twin."""
    records, seq = recording.records, recording.seq
    rows = blocks_of(paired_rows(recording))
    lives = _lives(records, seq, rows)
    ends = np.flatnonzero(records["kind"] == Kind.STEP)
    found = Comparison()
    is_block = (records["kind"] == Kind.EVENT) & (records["action"] == Action.ALLOC)
    found.num_blocks = int(is_block[ends[0] :].sum()) if len(ends) else 0
    backward = [at for at in np.flatnonzero(is_block) if rows[int(seq[at])]["phase"] == "backward"]
    showing = set(records["thread"][[*ends, *backward]].tolist())
    confirmed: dict[int, int] = {}
    for block, twin, likeness in twins_of(records).tolist():
        if likeness == Likeness.BEGINNING:
            found.num_beginning += 1
            found.wrong_beginning += _differences(rows[int(seq[twin])], rows[int(seq[block])])
            continue
        found.num_whole += 1
        differences = _differences(rows[int(seq[twin])], rows[int(seq[block])])
        if twin not in confirmed:
            confirmed[twin] = block
            found.doubtful += differences
            continue
        is_showing = int(records["thread"][block]) in showing
        (found.wrong if is_showing else found.wrong_elsewhere).update(differences)
        said, seen = rows[int(seq[confirmed[twin]])], rows[int(seq[block])]
        life, before = lives[int(seq[block])], lives[int(seq[confirmed[twin]])]
        # When a collective's thread lets go of a block is its own affair, and so is what that is taken for.
        is_alike = life == before and (life is None or life[2] in showing)
        found.num_alike += is_alike and is_showing
        if is_showing and said["category"] != seen["category"]:
            if is_alike:
                found.wrong_category[seen["operator"], said["category"], seen["category"]] += 1
            else:
                found.wrong_category_otherwise += 1
    return found


def _differences(said: Row, seen: Row) -> Counter[tuple[str, Any, Any]]:
    return Counter((name, said[name], seen[name]) for name in IDENTITY if said[name] != seen[name])


def blocks_of(tables: Mapping[str, pa.Table]) -> dict[int, dict[str, Any]]:
    """The rows of allocation_record by their blocks, each with its end and the last category given to it."""
    rows = {row["allocation_id"]: row for row in tables["allocation_record"].to_pylist()}
    if "allocation_end" in tables:
        for end in tables["allocation_end"].to_pylist():
            rows[end["allocation_id"]].update(end)
    if "category_change" in tables:
        for change in sorted(tables["category_change"].to_pylist(), key=lambda row: row["seq"]):
            rows[change["allocation_id"]]["category"] = change["category"]
    return rows


def _lives(records: Any, seq: Any, rows: Mapping[int, Row]) -> dict[int, Life]:
    is_end = records["kind"] == Kind.STEP
    ends = seq[is_end]
    trainers = np.unique(records["thread"][is_end])
    is_alloc = (records["kind"] == Kind.EVENT) & (records["action"] == Action.ALLOC)
    made = seq[is_alloc & np.isin(records["thread"], trainers)]

    def place(at: int) -> tuple[int, int]:
        step = int(np.searchsorted(ends, at))
        begin = int(ends[step - 1]) if step else 0
        return step, int(np.searchsorted(made, at) - np.searchsorted(made, begin))

    threads = dict(zip(seq.tolist(), records["thread"].tolist(), strict=True))
    lives: dict[int, Life] = {}
    for block, row in rows.items():
        freed = row["freed_seq"]
        if freed is None:
            lives[block] = None
        else:
            step, ordinal = place(int(freed))
            lives[block] = (step - place(block)[0], ordinal, threads[int(freed)])
    return lives


def report(name: str, found: Comparison) -> str:
    """A line, and one for each kind of difference."""
    lines = [
        f"{name}: {found.num_blocks} blocks, whole {found.num_whole}, beginning {found.num_beginning}; "
        f"wrong {sum(found.wrong.values())}, elsewhere {sum(found.wrong_elsewhere.values())}, "
        f"in beginnings {sum(found.wrong_beginning.values())}, doubtful {sum(found.doubtful.values())}; "
        f"lived alike {found.num_alike}, "
        f"category wrong {sum(found.wrong_category.values())}, else {found.wrong_category_otherwise}"
    ]
    kinds = {"whole": found.wrong, "elsewhere": found.wrong_elsewhere, "beginning": found.wrong_beginning,
             "doubtful": found.doubtful, "category": found.wrong_category}  # fmt: skip
    for title, wrong in kinds.items():
        lines += [f"    {title} {count} {what}" for what, count in wrong.most_common(4)]
    return "\n".join(lines)


def say_each(look: Callable[[str, Path], str]) -> None:
    """Prints what ``look`` says of each training that the command line names, else of all."""
    from steady_trainings import TRAININGS

    for name in sys.argv[1:] or TRAININGS:
        with tempfile.TemporaryDirectory() as made:
            try:
                print(look(name, Path(made)), flush=True)
            except RuntimeError as error:
                print(name, "FAILED", str(error)[-1500:], flush=True)


if __name__ == "__main__":
    say_each(lambda name, folder: report(name, shadowed(name, folder)))
