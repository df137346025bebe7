"""torch.jit.script of a module with a submodule, saved and loaded through a buffer."""

import io

import torch
from torch import nn
from witness import bits, declare


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(13, 13)

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            if x.sum() > -1e9:
                x = self.inner(x)
        return x


torch.manual_seed(9)
gate = Gate()
scripted = torch.jit.script(gate)
file = io.BytesIO()
torch.jit.save(scripted, file)
file.seek(0)
loaded = torch.jit.load(file)
x = torch.randn(2, 13)
for _ in range(3):
    loaded(x, 2).sum().backward()
print(scripted.code)
bits("same", [scripted(x, 3), loaded(x, 3), gate(x, 3)])
bits("gradients", [each.grad for each in loaded.parameters()])
declare(model=gate)
