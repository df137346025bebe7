"""A pipeline of two stages on gloo, GPipe's schedule, four micro-batches."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from witness import bits, declare

dist.init_process_group("gloo")
torch.manual_seed(0)
parts = [nn.Sequential(nn.Linear(16, 24), nn.ReLU()), nn.Sequential(nn.Linear(24, 3))]
rank = dist.get_rank()
part = parts[rank]
del parts
stage = PipelineStage(part, rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
for _ in range(2):
    x, y, losses = torch.randn(8, 16), torch.randn(8, 3), []
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=losses)
    optimizer.step()
bits("weights", part.parameters())
declare(steps=2)
dist.barrier()
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
