"""A log is cut where it is long enough, at a flush, or at its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankmem_ship.log_slices import LogSlices
from rankmem_ship.pace import BATCH_RECORDS
from spool_synthetic import SyntheticSpool, reader_of, training_records


def _growing(folder: Path) -> tuple[SyntheticSpool, LogSlices]:
    spool = SyntheticSpool(path=folder / "0-0-1", alive=True)
    spool.append(training_records(spool, 20))
    return spool, LogSlices(reader_of(spool.path))


def test_what_is_short_waits_for_a_flush(tmp_path: Path) -> None:
    spool, slices = _growing(tmp_path)
    assert slices.next(BATCH_RECORDS, allow_short=False) is None
    short = slices.next(BATCH_RECORDS, allow_short=True)
    assert short is not None
    assert (short.sequence_first, short.sequence_last, short.final) == (0, spool.next_seq - 1, False)
    assert not short.full
    assert slices.next(BATCH_RECORDS, allow_short=True) is None


def test_slices_follow_one_another_and_a_full_one_waits_for_nothing(tmp_path: Path) -> None:
    spool, slices = _growing(tmp_path)
    repeated = np.tile(training_records(spool, 2000, seed=1), 3)
    spool.append(repeated)
    full = slices.next(BATCH_RECORDS, allow_short=False)
    assert full is not None
    assert (full.sequence_first, full.sequence_last, full.final) == (0, BATCH_RECORDS - 1, False)
    assert full.full
    assert slices.next(BATCH_RECORDS, allow_short=False) is None
    spool.end()
    last = slices.next(BATCH_RECORDS, allow_short=False)
    assert last is not None
    assert (last.sequence_first, last.sequence_last, last.final) == (BATCH_RECORDS, spool.next_seq, True)
