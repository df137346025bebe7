"""One rank with NCCL: the world's group, one that is suspended and then given up, one that is never used."""

import time
from pathlib import Path

import torch
import torch.distributed as dist


def steps(number: int) -> None:
    for _ in range(number):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        time.sleep(0.3)


dist.init_process_group("nccl", init_method=f"file://{Path.cwd()}/store", rank=0, world_size=1)
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tensor = torch.ones(8, device="cuda")
unused = dist.new_group([0], group_desc="unused")
steps(5)
dist.all_reduce(tensor)
tp = dist.new_group([0], group_desc="mesh_tp")
dist.all_reduce(tensor, group=tp)
steps(5)
tp._get_backend(torch.device("cuda")).suspend()
steps(5)
tp._get_backend(torch.device("cuda")).resume()
dist.destroy_process_group(tp)
steps(5)
dist.destroy_process_group()
