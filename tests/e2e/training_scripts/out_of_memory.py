"""A training under ``ulimit -v`` that runs out of memory in a step. Prints the exception that it sees.

Argument: ``once`` asks for too much at once and goes on training, ``raise`` lets the exception end it,
``kill`` is killed when it has seen it, ``fill`` fills the memory block by block and says on stderr how many
it got.
"""

import os
import resource
import signal
import sys
from pathlib import Path

import torch
from torch import nn

ROOM_BYTES = 256 << 20  # besides what is mapped when the limit is set
REQUEST_BYTES = (1 << 40, 1 << 20)  # more than any limit leaves; a block of those that fill it

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.greedy = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        while self.greedy:
            held.append(torch.empty(REQUEST_BYTES[sys.argv[1] == "fill"], dtype=torch.uint8))
        return y


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step() -> None:
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)


for _ in range(3):
    step()
mapped_pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = mapped_pages * resource.getpagesize() + ROOM_BYTES
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
step()
model.greedy = True
held = [torch.ones(1 << 20)]  # alive when it happens
try:
    step()
except RuntimeError as error:
    print(type(error).__mro__, error, flush=True)
    print("blocks", len(held) - 1, file=sys.stderr, flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "raise":
        raise
model.greedy = False
held.clear()
step()
