"""Two ranks of Megatron's parallel_state and DistributedDataParallel on CPU: ``with_megatron.py TP``.

Megatron puts its buffers on the current CUDA device, whatever the parameters are on: that is made the CPU.
Its own optimizers take CUDA's tensors alone, so torch's steps on ``main_grad``.
"""

import sys
import time

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.transformer_config import TransformerConfig

torch.cuda.current_device = lambda: torch.device("cpu")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(256, 512)
        self.last = torch.nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


torch.manual_seed(0)
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=int(sys.argv[1]))
config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=1, use_cpu_initialization=True)
model = DistributedDataParallel(config, DistributedDataParallelConfig(), Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    model.zero_grad_buffer()
    loss = model(torch.randn(8, 256)).square().mean()
    loss.backward()
    model.finish_grad_sync()
    for parameter in model.parameters():
        parameter.grad = parameter.main_grad
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    if dist.get_rank() == 0:
        print("loss", loss.item().hex(), flush=True)
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
