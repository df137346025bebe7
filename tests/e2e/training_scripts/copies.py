"""Pickles and deep copies of models and optimizers that have run; prints what the pickles name."""

import copy
import pickle
import pickletools

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
    names = {text for _, text, _ in pickletools.genops(data) if isinstance(text, str)}
    print(len(data), sorted(each for each in names if each.isidentifier() or " " in each))
    print(sorted(vars(each)) if hasattr(each, "__dict__") else "")
twin, its = copy.deepcopy((model, optimizer))
again, its_own = pickle.loads(pickle.dumps((model, optimizer)))
for _ in range(2):
    for pair in ((model, optimizer), (twin, its), (again, its_own)):
        step(*pair)
bits("weights", [*model.parameters(), *twin.parameters(), *again.parameters()])
print(vars(torch.optim.Adam).keys(), vars(nn.Linear).keys(), nn.Linear.__call__, optimizer.step)
