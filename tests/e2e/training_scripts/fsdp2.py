"""FSDP2 on gloo over a mesh made with its keyword."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from witness import bits, declare

dist.init_process_group("gloo")
mesh = DeviceMesh("cpu", mesh=torch.arange(2), mesh_dim_names=("dp",))
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(28, 28), nn.Tanh()) for _ in range(3)))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(dist.get_rank())
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 28)).square().mean()
    loss.backward()
    optimizer.step()
bits("loss", [loss])
bits("shards", [each.to_local() for each in model.parameters()])
declare(steps=3)
dist.barrier()
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
