"""torch.fx: symbolic_trace and make_fx in its three ways, of models that have not run."""

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from witness import bits, declare


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(15))
        self.inner = nn.Sequential(nn.Linear(15, 8), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.scale).sum(-1)


torch.manual_seed(12)
x = torch.randn(4, 15)
traced = fx.symbolic_trace(model := Net())
print(traced.graph, traced.code)
for mode in ("real", "fake", "symbolic"):
    made = make_fx(Net(), tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    print(mode, made.code.strip())
traced(x).sum().backward()
bits("outputs", [traced(x), model(x)])
bits("gradients", [each.grad for each in model.parameters()])
del made
declare(model=model)
