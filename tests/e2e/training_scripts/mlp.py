"""An MLP, SGD with momentum and a schedule, under torch.manual_seed."""

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(31, 57), nn.ReLU(), nn.Dropout(0.1), nn.Linear(57, 11))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
for _ in range(6):
    x, y = torch.randn(13, 31), torch.randint(11, (13,))
    optimizer.zero_grad(set_to_none=False)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    schedule.step()
    print(loss.item().hex(), schedule.get_last_lr())
bits("weights", model.parameters())
declare(model=model, steps=6)
