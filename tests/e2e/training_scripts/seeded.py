"""A seeded training, below torchrun or not; prints every loss in full and a hash of the weights."""

import hashlib
import os
import time

import torch
from torch import nn

torch.manual_seed(int(os.environ.get("RANK", "0")))
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"rank {os.environ.get('RANK', '-')}: {loss.item().hex()}\n", end="", flush=True)
digest = hashlib.sha256()
for weight in model.parameters():
    digest.update(weight.detach().numpy().tobytes())
print(f"rank {os.environ.get('RANK', '-')}: {digest.hexdigest()}\n", end="", flush=True)
if "RANK" in os.environ:
    # Together: gloo's threads abort the process ("terminate called ...") when a peer has gone before.
    torch.distributed.barrier()
    time.sleep(0.1)  # or gloo may hang: docs/launchers.md
    torch.distributed.destroy_process_group()
