"""sys.settrace and sys.setprofile of the user's own; prints what they saw of this file."""

import sys
import threading
from collections import Counter

import torch
from torch import nn

calls: Counter[str] = Counter()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()


def watch(frame, event: str, argument: object):
    if frame.f_code.co_filename == __file__:
        calls[f"{event} {frame.f_code.co_name} {frame.f_lineno}"] += 1
    return watch


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for install, installed in ((sys.settrace, sys.gettrace), (sys.setprofile, sys.getprofile)):
    install(watch)
    threading.setprofile(watch)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    print(installed() is watch)
    install(None)
print("\n".join(f"{count} {what}" for what, count in sorted(calls.items())))
