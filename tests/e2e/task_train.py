"""A training whose rank is the task that a launcher (srun, mpirun) numbered, as many scripts have it."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

NUMBERED_BY = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def main() -> None:
    rank, size = next(
        (int(os.environ[rank]), int(os.environ[size])) for rank, size in NUMBERED_BY if rank in os.environ
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60))
    net = torch.nn.Linear(64, 64 * (1 + rank))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(3):
        net(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.1)  # or gloo may hang: docs/launchers.md
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
