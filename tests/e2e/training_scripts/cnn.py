"""A CNN with batch norm, two groups of parameters; trained, then evaluated without gradients."""

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(3, 9, 3), nn.BatchNorm2d(9), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9 * 49, 7)
)
groups = [{"params": model[0].parameters()}, {"params": model[5].parameters(), "lr": 0.01}]
optimizer = torch.optim.RMSprop(groups, lr=0.001)
for _ in range(4):
    images, labels = torch.randn(5, 3, 16, 16), torch.randint(7, (5,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    bits("no_grad", [model(images)])
with torch.inference_mode():
    bits("inference_mode", [model(images)])
bits("state", model.state_dict().values())
declare(model=model, steps=4)
