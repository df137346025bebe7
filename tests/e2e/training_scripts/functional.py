"""Training by torch.func: grad, vmap over an ensemble, functional_call, jvp, never outside of them."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, jvp, stack_module_state, vmap
from witness import bits, declare

torch.manual_seed(13)
model = nn.Sequential(nn.Linear(12, 18), nn.Tanh(), nn.Linear(18, 1))
parameters = {name: each.detach().clone() for name, each in model.named_parameters()}


def loss(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return functional_call(model, values, (x,)).square().mean()


for _ in range(3):
    gradients, value = grad_and_value(loss)(parameters, torch.randn(5, 12))
    parameters = {name: each - 0.1 * gradients[name] for name, each in parameters.items()}
    print(value.item().hex())
models = [nn.Sequential(nn.Linear(12, 3), nn.ReLU()) for _ in range(4)]
stacked, buffers = stack_module_state(models)
x = torch.randn(5, 12)
outputs = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(stacked, buffers)
per_sample = vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
tangent = jvp(lambda y: model(y), (x,), (torch.ones_like(x),))
bits("results", [*parameters.values(), outputs, *per_sample.values(), *tangent])
del outputs, tangent
declare()
