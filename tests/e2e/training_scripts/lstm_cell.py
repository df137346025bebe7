"""An LSTMCell in a Python loop, truncated back-propagation through time."""

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(3)
cell, head = nn.LSTMCell(5, 19), nn.Linear(19, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
state = (torch.zeros(2, 19), torch.zeros(2, 19))
for _ in range(3):
    loss = torch.zeros(())
    state = tuple(each.detach() for each in state)
    for x in torch.randn(12, 2, 5):
        state = cell(x, state)
        loss = loss + head(state[0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
bits("weights", [*cell.parameters(), *head.parameters()])
state = tuple(each.detach() for each in state)
declare(model=cell, steps=3)
