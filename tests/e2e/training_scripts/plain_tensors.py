"""A training without modules and optimizers: tensors, autograd.grad, updates in place and out of place."""

import torch
from witness import bits, declare

torch.manual_seed(32)
weights = [torch.randn(23, 47, requires_grad=True), torch.randn(47, 3, requires_grad=True)]
momentum = [torch.zeros_like(each) for each in weights]
history = []
for _ in range(5):
    x = torch.randn(8, 23)
    loss = ((x @ weights[0]).tanh() @ weights[1]).square().mean()
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        torch._foreach_mul_(momentum, 0.9)
        torch._foreach_add_(momentum, gradients)
        weights = [(w - 0.1 * m).requires_grad_() for w, m in zip(weights, momentum, strict=True)]
    history.append(loss.detach())
bits("weights", [*weights, *momentum, *history])
del loss
declare()
