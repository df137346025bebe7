"""A training as a user would write it, for the tests of the main job: seeded, distributed under torchrun.

It knows nothing of rankmem. Rank 1 works on larger batches than rank 0, so that it peaks higher.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--end", default="", help="how rank 0 ends: exit:N, raise, kill")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(7)
    net: nn.Module = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)
    )
    model = DistributedDataParallel(net) if "RANK" in os.environ else net
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(11 + rank)
    for step in range(arguments.steps):
        batch = torch.randn(256 * (1 + rank), 64)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item().hex()}", flush=True)
    if dist.is_initialized():
        time.sleep(0.1)  # or gloo may hang: docs/launchers.md
        dist.destroy_process_group()
    if rank == 0:
        end(arguments.end)


def end(how: str) -> None:
    kind, _, value = how.partition(":")
    if kind == "exit":
        sys.exit(int(value))
    if kind == "raise":
        raise RuntimeError("the training failed")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
