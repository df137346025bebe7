"""A training whose blocks are numbered by their sizes, and which ends as its attempt and rank tell it.

``numbered_train.py FOLDER KIND``. Kinds:

* ``elastic``: under torchrun with three ranks. Attempt 0: rank 2 gives up before it imports torch, when the
  others have written. Attempt 1: rank 1 aborts. Attempt 2: all end well. Torchrun kills who is left.
* ``steps``: takes optimizer steps until the file FOLDER/enough is there.
* ``endless``: makes and frees numbered blocks until it is killed; FOLDER/witness has how many for sure.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")  # the tests import what is numbered here
RANK = int(os.environ.get("RANK", "0"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
BLOCKS = 300
HELD = (1, 3, 2)
"""Times 20 blocks are held to the end, by attempt: the second stands highest."""
DEADLINE_S = 60.0


def size_of(block: int) -> int:
    """Its size in bytes: 3 more than a multiple of 16, which no other block of a training is."""
    return 100_003 + 16 * block


def numbered_blocks() -> None:
    """All blocks of this rank and attempt, in order; the last ones are kept."""
    import torch

    kept = []
    for block in range(BLOCKS):
        tensor = torch.empty(size_of(block), dtype=torch.uint8)
        if block >= BLOCKS - 20 * HELD[ATTEMPT]:
            kept.append(tensor)
        del tensor
    globals()["kept"] = kept


def ready(attempt: int, rank: int) -> Path:
    return FOLDER / f"ready-{attempt}-{rank}"


def wait_for(*paths: Path) -> None:
    over_s = time.monotonic() + DEADLINE_S
    while not all(path.exists() for path in paths):
        if time.monotonic() > over_s:
            sys.exit("waited in vain")
        time.sleep(0.02)


def elastic() -> None:
    if (ATTEMPT, RANK) == (0, 2):
        wait_for(ready(0, 0), ready(0, 1))
        os._exit(7)
    numbered_blocks()
    ready(ATTEMPT, RANK).touch()
    wait_for(*(ready(ATTEMPT, rank) for rank in range(3) if (ATTEMPT, rank) != (0, 2)))
    if (ATTEMPT, RANK) == (1, 1):
        os.abort()
    if ATTEMPT < 2:
        signal.pause()


def steps() -> None:
    from rankmem_agent.spool.reelection import Reelection

    every = Reelection.__init__.__kwdefaults__
    assert every is not None
    every["every_s"] = 0.2  # instead of ten seconds
    import torch

    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    over_s = time.monotonic() + DEADLINE_S
    while not (FOLDER / "enough").exists() and time.monotonic() < over_s:
        weight.grad = torch.ones(8)
        optimizer.step()
        ready(0, 0).touch()
        time.sleep(0.02)


def endless() -> None:
    import torch

    (FOLDER / "witness").write_bytes(bytes(8))
    with (FOLDER / "witness").open("r+b") as file:
        witness = mmap.mmap(file.fileno(), 8)
    for block in range(1 << 20):
        torch.empty(size_of(block), dtype=torch.uint8)
        struct.pack_into("<Q", witness, 0, block + 1)


if __name__ == "__main__":
    {"elastic": elastic, "steps": steps, "endless": endless}[sys.argv[2]]()
