"""Two ranks of DeepSpeed's ZeRO on CPU: ``with_zero.py STAGE [groups]``; prints each loss of rank 0."""

import sys
import time

import deepspeed
import torch
import torch.distributed as dist

torch.manual_seed(0)
deepspeed.init_distributed("gloo")
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
config = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": int(sys.argv[1])},
    "zero_allow_untested_optimizer": True,
}
groups = [
    {"params": [each for each in model.parameters() if (each.dim() > 1) == decays]}
    for decays in (True, False)
]
parameters = groups if "groups" in sys.argv else model.parameters()
engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    loss = engine(torch.randn(8, 256)).square().mean()
    engine.backward(loss)
    engine.step()
    if dist.get_rank() == 0:
        print("loss", loss.item().hex(), flush=True)
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
