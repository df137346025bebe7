"""Memory snapshots that tests make: a job's allocator at random, dumped as torch does."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

from fake_history import FakeHistory


def random_snapshot(seed: int, *, events: int = 200, devices: int = 1, late: int = 20) -> dict[str, Any]:
    """A snapshot whose history began after some events, with blocks that wait for another stream."""
    chance = random.Random(seed)
    history = FakeHistory(devices=devices)
    history.now_us += seed * 1_000_000
    free = list(range(1, events + late + 1))
    for number in range(events + late):
        if number == late:
            history.start()
        device = chance.randrange(devices)
        live = history.live[device]
        usable = [a for a, block in live.items() if block["state"] == "active_allocated"]
        waiting = [a for a in live if a not in usable]
        what = chance.random()
        if what < 0.5 or not live:
            where = free.pop(chance.randrange(len(free)))
            history.alloc(where << 12, chance.randrange(1, 4096), device=device, line=chance.randrange(1, 9))
        elif what < 0.8 and usable:
            gone = chance.choice(usable)
            history.free(gone, device=device)
            free.append(gone >> 12)
        elif what < 0.9 and usable:
            history.free_requested(chance.choice(usable), device=device)
        elif waiting:
            gone = chance.choice(waiting)
            history.free_completed(gone, device=device)
            free.append(gone >> 12)
        else:
            history.oom(1 << 30, 4096, device=device)
    return history.look()


def dump(path: Path, snapshot: dict[str, Any], protocol: int = 4) -> Path:
    """The snapshot as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    return path
