"""Hooks of the user's own, of every kind; prints the order in which they are called, and removes them."""

import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.optim import optimizer as optimizers
from witness import bits, declare

torch.manual_seed(18)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
calls: list[str] = []


def note(what: str):
    return lambda *args, **kwargs: calls.append(f"{what} {len(args)} {sorted(kwargs)}")


handles = [
    global_hooks.register_module_forward_pre_hook(note("global before")),
    global_hooks.register_module_forward_hook(note("global after")),
    global_hooks.register_module_full_backward_hook(note("global backward")),
    global_hooks.register_module_parameter_registration_hook(note("parameter")),
    model[0].register_forward_pre_hook(note("before"), with_kwargs=True),
    model.register_forward_hook(note("after"), always_call=True),
    model[2].weight.register_post_accumulate_grad_hook(note("accumulated")),
    optimizers.register_optimizer_step_pre_hook(note("step")),
]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.register_step_post_hook(note("stepped"))
for turn in range(2):
    optimizer.zero_grad()
    y = model(torch.randn(3, 6))
    y.register_hook(note("tensor"))
    y.sum().backward()
    optimizer.step()
    model[0].bias = nn.Parameter(torch.zeros(10))
    if turn == 0:
        handles.pop(1).remove()
print("\n".join(calls))
for handle in handles:
    handle.remove()
print(len(model._forward_hooks), len(model[0]._forward_pre_hooks))
bits("weights", model.parameters())
del y
declare(model=model, steps=2)
