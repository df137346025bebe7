"""Two ranks on gloo, sharded or not: ``sharded.py WAY``."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

way = sys.argv[1]
dist.init_process_group("gloo")
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(3)]
model: nn.Module = nn.Sequential(nn.Linear(40, 64), *blocks, nn.Linear(64, 100))
if way.startswith("fsdp1"):
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}),
        use_orig_params="orig" in way,
        sharding_strategy=ShardingStrategy.NO_SHARD if "none" in way else ShardingStrategy.FULL_SHARD,
        device_id=torch.device("cpu"),
    )
elif way == "fsdp2":
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
if way == "zero_redundancy":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
elif way == "adafactor":
    optimizer = torch.optim.Adafactor(model.parameters())
elif way == "momentum":
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(dist.get_rank())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 40)).square().mean().backward()
    optimizer.step()
dist.barrier()
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
