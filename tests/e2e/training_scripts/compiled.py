"""A compiled model, fullgraph. Argument: the backend. Prints losses and Dynamo's counters."""

import sys
import warnings

import torch
from torch import nn
from torch._dynamo.utils import counters

warnings.simplefilter("always")
warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch's own
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 1)
)
compiled = torch.compile(model, backend=sys.argv[1], fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = compiled(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())


@torch.compile(backend=sys.argv[1], fullgraph=True)
def function(x: torch.Tensor) -> torch.Tensor:
    return model(x) * 2


print(function(torch.ones(2, 8)).sum().item().hex())
print(sorted(counters["stats"].items()), sorted(counters["graph_break"].items()))
