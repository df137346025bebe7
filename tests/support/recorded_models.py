"""Trains a model of trained_models in a process of its own and pairs what it recorded; no aggregator."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from rankmem_ship.pairing.pairing import Pairing
from tap_process import Recording, read_spool
from torch_forks import run_forked

SCRIPT = Path(__file__).with_name("trained_models.py")


def recorded_model(name: str, folder: Path, steps: int = 3) -> dict[str, pa.Table]:
    """The rows of each table of a recorded training, by name.

    Args:
        name: of trained_models.MODELS; folder: an existing one, the spool is made in it.
    """
    spool = folder / "spool"
    spool.mkdir()
    done = run_forked(SCRIPT, (name, str(spool), str(steps)), folder)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return paired_rows(read_spool(spool, done))


def paired_rows(recording: Recording, records_at_once: int = 32_768) -> dict[str, pa.Table]:
    """The rows of each table that a shipper would make of a recording in such batches, by name."""
    reader = type(recording.reader)(recording.reader.path)
    pairing = Pairing(reader.meta, reader.strings)
    rows: dict[str, list[pa.RecordBatch]] = {}
    while (part := reader.read(records_at_once)) is not None:
        pairing.feed(part)
        for table, batch in pairing.cut():
            rows.setdefault(table, []).append(batch)
    for table, batch in pairing.cut(final=True):
        rows.setdefault(table, []).append(batch)
    return {table: pa.Table.from_batches(batches).unify_dictionaries() for table, batches in rows.items()}
