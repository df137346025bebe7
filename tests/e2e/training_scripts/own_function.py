"""A torch.autograd.Function of one's own with double backward, and tensors kept by save_on_cpu and hooks."""

import torch
from torch import nn
from witness import bits, declare


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3 * ctx.saved_tensors[0] ** 2


torch.manual_seed(17)
layer = nn.Linear(9, 27)
x = torch.randn(4, 9, requires_grad=True)
with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.float64), lambda t: t.to(torch.float32)):
    y = Cube.apply(layer(x)).sum()
(first,) = torch.autograd.grad(y, x, create_graph=True)
first.square().sum().backward()
print(torch.autograd.gradcheck(Cube.apply, torch.randn(2, 2, dtype=torch.float64, requires_grad=True)))
bits("gradients", [first, x.grad, layer.weight.grad])
del first, y
declare(model=layer)
