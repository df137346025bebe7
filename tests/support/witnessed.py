"""Holds a recording against what the training script knew of itself (``e2e/training_scripts/witness.py``)."""

from __future__ import annotations

import json
import mmap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankmem_agent.hooks.steps import ENDED_BY_CALL
from rankmem_agent.spool.layout import Action, DeviceType, Kind
from rankmem_ship.spool_reader.reader import Chunk, SpoolReader


@dataclass(frozen=True)
class Declared:
    """What one rank's script wrote down."""

    sentinel: int
    live: dict[int, int]
    weights: list[str]
    steps: int


def declared(path: Path) -> Declared:
    """Reads it."""
    found = json.loads(path.read_text())
    live = {int(address): int(size) for address, size in found["live"].items()}
    return Declared(found["sentinel"], live, found["weights"], found["steps"])


def compare(spool: Path, said: Declared) -> dict[str, Any]:
    """What the recording and the script do not agree on; empty if they agree.

    ``missing`` are blocks that the recording does not have as the script has them (sizes), ``more`` sizes of
    blocks that only the recording has. A file that is mapped is one block, within which several storages lie.
    """
    records, strings = _read(spool)
    live = _live_at(records, said.sentinel)
    around = {address: _block_around(live, address, size) for address, size in said.live.items()}
    missing = Counter(size for address, size in said.live.items() if around[address] is None)
    more = Counter(size for address, size in live.items() if address not in around.values())
    differences: dict[str, Any] = {"missing": dict(missing), "more": dict(more)}
    weights = records[records["kind"] == Kind.WEIGHT]
    named = {json.loads(strings.name(int(each["e"])))["name"] for each in weights}
    differences["weights"] = sorted(set(said.weights) - named)
    ended_by = [strings.name(int(each["e"])) for each in records[records["kind"] == Kind.STEP]]
    steps = sum(name != ENDED_BY_CALL for name in ended_by)  # jit.trace calls the model before any optimizer
    differences["steps"] = (steps, said.steps) if said.steps and steps != said.steps else ()
    return {name: each for name, each in differences.items() if each}


def _block_around(live: dict[int, int], address: int, size: int) -> int | None:
    """The address of the recorded block that is this storage, or the file that it lies in; None for none."""
    if address in live:
        return address if live[address] == size else None
    for begin, length in live.items():
        is_mapped = begin % mmap.PAGESIZE == 0
        if is_mapped and begin < address and address + size <= begin + length:
            return begin
    return None


def _live_at(records: Any, sentinel: int) -> dict[int, int]:
    """Size by address of the CPU's blocks that are alive when the sentinel is allocated."""
    live: dict[int, int] = {}
    events = records[(records["kind"] == Kind.EVENT) & (records["device_type"] == DeviceType.CPU)]
    at_sentinel: dict[int, int] | None = None
    for action, address, size in zip(
        events["action"].tolist(), events["a"].tolist(), events["b"].tolist(), strict=True
    ):
        if action == Action.ALLOC:
            if address == sentinel and size == 1_234_567:
                at_sentinel = dict(live)
            live[address] = size
        elif action == Action.FREE_COMPLETED:
            live.pop(address, None)
    assert at_sentinel is not None, "the sentinel was not recorded"
    return at_sentinel


def _read(path: Path) -> tuple[Any, Any]:
    reader = SpoolReader(path)
    parts = []
    while (part := reader.read(1 << 20)) is not None:
        assert isinstance(part, Chunk), part
        parts.append(part.records.copy())
    strings = reader.strings
    reader.close()
    return np.concatenate(parts), strings
