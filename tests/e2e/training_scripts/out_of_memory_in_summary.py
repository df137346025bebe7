"""Twenty-four steps on a GPU; in one a module asks for more than the device has, and the program goes on."""

import torch
from torch import nn


class Grows(nn.Module):
    def forward(self, batch: torch.Tensor, num: int) -> torch.Tensor:
        torch.empty(num, device="cuda")
        return batch


model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
grows = Grows()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for number in range(24):
    batch = torch.ones(512, 256, device="cuda")
    try:
        batch = grows(batch, 1 << 40 if number == 15 else 1 << 10)
    except torch.OutOfMemoryError:
        print("out of memory")
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
