"""Trains 200 steps of one model, always with the same numbers, with an evaluation after each twentieth."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(20)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
held_out = torch.randn(64, 32)

for step in range(200):
    with torch.profiler.record_function("load"):
        batch = torch.randn(16, 32)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    del batch
    if step % 20 == 19:
        with torch.no_grad():
            model(held_out).mean().item()
print("trained", step + 1)
