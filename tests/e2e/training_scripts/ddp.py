"""DistributedDataParallel on gloo, with gradient accumulation under no_sync."""

import time

import torch
import torch.distributed as dist
from torch import nn
from witness import bits, declare

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.Sequential(nn.Linear(22, 34), nn.BatchNorm1d(34), nn.ReLU(), nn.Linear(34, 9))
parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.Adam(parallel.parameters())
for _ in range(3):
    optimizer.zero_grad()
    with parallel.no_sync():
        parallel(torch.randn(8, 22)).square().mean().backward()
    parallel(torch.randn(8, 22)).square().mean().backward()
    optimizer.step()
bits("weights", model.parameters())
declare(model=model, steps=3)
dist.barrier()
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
