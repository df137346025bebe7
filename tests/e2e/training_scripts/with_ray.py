"""Three steps of Ray Train on two ranks."""

from __future__ import annotations

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train() -> None:
    model = prepare_model(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=80_000_000)
    scaling = ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1})
    TorchTrainer(train, scaling_config=scaling).fit()
