"""LBFGS: the optimizer calls forward and backward as often as it likes."""

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(6)
model = nn.Sequential(nn.Linear(7, 23), nn.Tanh(), nn.Linear(23, 1))
x, y = torch.randn(29, 7), torch.randn(29, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
calls = 0


def closure() -> torch.Tensor:
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(3):
    print(optimizer.step(closure).item().hex(), calls)
bits("weights", model.parameters())
declare(model=model, steps=3)
