"""References: nothing is kept alive longer, no reference is counted more, no cycle is added."""

import gc
import sys
import weakref

import torch
from torch import nn
from witness import declare

gc.set_threshold(50, 5, 5)
died: list[str] = []
for turn in range(4):
    model = nn.Sequential(nn.Linear(16, 46), nn.ReLU(), nn.Linear(46, 1))
    optimizer = torch.optim.Adam(model.parameters())
    y = model(torch.ones(2, 16)).sum()
    y.backward()
    optimizer.step()
    for name, each in (("model", model), ("weight", model[0].weight), ("optimizer", optimizer), ("y", y)):
        weakref.finalize(each, died.append, f"{turn} {name}")
    print([sys.getrefcount(each) for each in (model, model[0], optimizer, y)])
    died.append(f"{turn} lets go")
    del y, each, model, optimizer
    died.append(f"{turn} collected {gc.collect() > 0}")
print("\n".join(died))
print(gc.get_threshold(), gc.get_freeze_count(), gc.isenabled(), gc.garbage, len(gc.callbacks))
declare()
