"""Trains 60 equal steps of small operators, with an evaluation after 20 and after 40: no audit hides both."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for step in range(60):
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (19, 39):
        with torch.no_grad():
            model(torch.randn(64, 32)).mean().item()
print("trained", step + 1)
