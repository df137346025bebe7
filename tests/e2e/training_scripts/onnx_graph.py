"""The graph of torch.onnx's TorchScript exporter, made from a model that has not run."""

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(11)
model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5))
x = torch.randn(2, 1, 8, 8)
try:
    torch.onnx.export(model, (x,), "/dev/null", dynamo=False, verbose=True)
except Exception as error:  # noqa: BLE001  the package onnx may not be there
    print(type(error).__name__, error)
graph, _, _ = torch.onnx.utils._model_to_graph(model, (x,), do_constant_folding=False)
print(graph)
bits("output", [model(x)])
declare(model=model)
