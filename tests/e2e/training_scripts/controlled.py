"""Two ranks of DistributedDataParallel that step until the file ``done`` is there."""

import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model = DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters())
goes_on = torch.ones(1)
while goes_on.item():
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    goes_on.fill_(float(not pathlib.Path("done").exists()))
    dist.broadcast(goes_on, 0)
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
