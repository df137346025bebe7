"""A small training under torch.profiler on CPU, run as a script: writes its trace.

Usage: python profiled_training.py TRACE STEPS
"""

from __future__ import annotations

import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function


def main(path: str, steps: int) -> None:
    """Profiles so many steps after one that warms up."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True, record_shapes=True
    ) as profiler:
        for number in range(steps):
            with record_function(f"ProfilerStep#{number}"):
                step(model, optimizer)
    profiler.export_chrome_trace(path)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Forward, backward, update."""
    with record_function("my forward"):
        loss = model(torch.ones(32, 64)).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
