"""Two ranks of Megatron's own optimizer, in bf16, on CPU: ``with_megatron_optimizer.py whole|distributed``.

It takes CUDA's tensors alone: their types are said to be CUDA's, and what it makes there is made on the CPU.
"""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

torch.cuda.current_device = lambda: torch.device("cpu")


def on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **given: Any) -> Any:
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        return make(*args, **given)

    return made


def of_cuda(genuine: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(genuine)
    def kind(tensor: torch.Tensor, *args: Any, **given: Any) -> Any:
        found = genuine(tensor, *args, **given)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found

    return kind


for name in ("tensor", "zeros", "empty", "ones"):
    setattr(torch, name, on_cpu(getattr(torch, name)))
torch.Tensor.type = of_cuda(torch.Tensor.type)
torch.Tensor.cuda = lambda tensor, *_, **__: tensor

from megatron.core import parallel_state  # noqa: E402  after its devices are the CPU
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

is_distributed = sys.argv[1] == "distributed"
torch.manual_seed(0)
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel()
config = TransformerConfig(
    num_layers=1, hidden_size=64, num_attention_heads=1, use_cpu_initialization=True, bf16=True,
    params_dtype=torch.bfloat16,
)  # fmt: skip
net = torch.nn.Sequential(
    torch.nn.Linear(200, 96),
    torch.nn.ReLU(),
    torch.nn.Linear(96, 96),
    torch.nn.ReLU(),
    torch.nn.Linear(96, 120),
).bfloat16()
for parameter in net.parameters():
    parameter.allreduce = True
buffers = DistributedDataParallelConfig(use_distributed_optimizer=is_distributed)
model = DistributedDataParallel(config, buffers, net)
of_optimizer = OptimizerConfig(
    optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, clip_grad=0.0,
    use_distributed_optimizer=is_distributed, barrier_with_L1_time=False,
)  # fmt: skip
optimizer = get_megatron_optimizer(of_optimizer, [model])
torch.manual_seed(dist.get_rank())
for _ in range(5):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    loss = model(torch.randn(8, 200, dtype=torch.bfloat16)).float().square().mean()
    loss.backward()
    model.finish_grad_sync()
    optimizer.step()
    if dist.get_rank() == 0:
        print("loss", loss.item().hex(), flush=True)
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
