"""Pickles and deep copies of models and optimizers that have run; prints the pickles' bytes."""

import copy
import hashlib
import pickle

import torch
from torch import nn
from witness import bits

torch.manual_seed(30)
model = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, 2))
optimizer = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 14)).sum().backward()
    optimizer.step()


step(model, optimizer)
for each in (model, optimizer, schedule.state_dict(), (model, optimizer)):
    data = pickle.dumps(each)
    print(len(data), hashlib.sha256(data).hexdigest(), b"rankmem" in data)
    print(sorted(vars(each)) if hasattr(each, "__dict__") else "")
twin, its = copy.deepcopy((model, optimizer))
again, its_own = pickle.loads(pickle.dumps((model, optimizer)))
for _ in range(2):
    for pair in ((model, optimizer), (twin, its), (again, its_own)):
        step(*pair)
bits("weights", [*model.parameters(), *twin.parameters(), *again.parameters()])
print(vars(torch.optim.Adam).keys(), vars(nn.Linear).keys(), nn.Linear.__call__, optimizer.step)
