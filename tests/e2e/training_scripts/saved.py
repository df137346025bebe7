"""Checkpoints: state_dict saved, and loaded in full, by assignment, memory-mapped, weights_only."""

import io
import os
import tempfile

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(29)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(19, 38), nn.BatchNorm1d(38), nn.Linear(38, 4))
    return model, torch.optim.AdamW(model.parameters(), amsgrad=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(6, 19)).square().sum().backward()
    optimizer.step()


model, optimizer = make()
step(model, optimizer)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "state.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    print(os.path.getsize(path))
    state = torch.load(path, weights_only=True, mmap=True)
    other, its = make()
    print(other.load_state_dict(state["model"]), its.load_state_dict(state["optimizer"]))
    assigned, _ = make()
    print(assigned.load_state_dict({k: v.clone() for k, v in state["model"].items()}, assign=True))
    del state
step(other, its)
whole = io.BytesIO()
torch.save(model, whole)
print(len(whole.getvalue()), sorted(optimizer.state_dict()["state"][0]))
bits("weights", [*model.parameters(), *other.parameters(), *assigned.parameters()])
declare(model=other)
