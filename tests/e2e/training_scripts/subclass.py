"""Parameters of tensor classes of the user's own, which tell what is asked of them."""

import torch
from torch import nn
from witness import bits

asked: list[str] = []


class Told(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        asked.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


class Odd(torch.Tensor):
    """Answers nothing that one may ask of it."""

    @property
    def device(self):
        raise LookupError("no device")

    @property
    def requires_grad(self):
        raise ValueError("nobody knows")

    def data_ptr(self):
        raise KeyError("secret")

    def numel(self):
        raise ArithmeticError("countless")


torch.manual_seed(20)
model = nn.Linear(10, 14)
model.weight = nn.Parameter(torch.randn(14, 10).as_subclass(Told))
model._parameters["odd"] = torch.randn(3).as_subclass(Odd)
optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(2, 10)).as_subclass(torch.Tensor).sum().backward()
    optimizer.step()
print(asked)
bits("weights", [model.weight.as_subclass(torch.Tensor), model.bias])
