"""A training as long ones are: batches of random size, threads and workers that come and go, evaluations and
checkpoints, thousands of steps.

Stage: the user's script. It knows nothing of rankmem. Writes the number of its steps to ``--out``, as JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import threading
import time
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.utils.data import DataLoader

BATCH_MAX: Final = 700
STEPS_TO_THREAD: Final = 50
STEPS_TO_EPOCH: Final = 2_000


def epoch_ends(model: nn.Module) -> None:
    """An epoch's end: data by a worker, an evaluation, a checkpoint that is written and read."""
    for _ in DataLoader(list(torch.randn(64, 16)), batch_size=8, num_workers=1):  # type: ignore[arg-type]
        pass
    model.eval()
    with torch.no_grad():
        model(torch.randn(64, 16))
    model.train()
    checkpoint = io.BytesIO()
    torch.save(model.state_dict(), checkpoint)
    checkpoint.seek(0)
    model.load_state_dict(torch.load(checkpoint))


def beside(num_rows: int) -> None:
    """What a thread of the program's own allocates."""
    x = torch.randn(num_rows, 16)
    (x @ x.T).sum()


def main() -> None:
    """Trains for ``--seconds``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
    model = nn.Sequential(nn.Linear(16, 32), *layers, nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    until, step = time.monotonic() + arguments.seconds, 0
    while time.monotonic() < until:
        if step % STEPS_TO_EPOCH == 0:
            epoch_ends(model)
        if step % STEPS_TO_THREAD == 0:
            thread = threading.Thread(target=beside, args=(random.randint(1, 300),), name=f"beside {step}")
            thread.start()
            thread.join()
        model(torch.randn(random.randint(1, BATCH_MAX), 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    arguments.out.write_text(json.dumps({"steps": step}))


if __name__ == "__main__":
    main()
