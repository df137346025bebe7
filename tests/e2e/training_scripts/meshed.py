"""Ranks of a training on a mesh of dp x tp; each prints where torch says that it is."""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
ranks = [mesh.get_local_rank(name) for name in ("dp", "tp")]
# In one write, since all ranks share the pipe.
print(f"place {os.environ['RANK']} {ranks[0]} {ranks[1]}\n", end="", flush=True)
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
