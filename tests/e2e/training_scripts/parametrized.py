"""Parametrizations: weight norm, spectral norm, orthogonal, one of the user's own that counts."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from witness import bits, declare

evaluations = 0


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global evaluations
        evaluations += 1
        return x.triu() + x.triu(1).transpose(-1, -2)


torch.manual_seed(23)
model = nn.Sequential(*(nn.Linear(12, 12) for _ in range(4)))
parametrizations.weight_norm(model[0])
parametrizations.spectral_norm(model[1])
parametrizations.orthogonal(model[2])
parametrize.register_parametrization(model[3], "weight", Symmetric())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    with parametrize.cached():
        (model(torch.randn(5, 12)) + model(torch.randn(5, 12))).square().sum().backward()
    optimizer.step()
parametrize.remove_parametrizations(model[3], "weight")
print(evaluations, sorted(model.state_dict()))
bits("weights", model.parameters())
declare(steps=3)
