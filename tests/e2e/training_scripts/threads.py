"""Inference of one model in four threads at once, each with its own batch, and a training beside it."""

import threading

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(25)
torch.set_num_threads(1)
served = nn.Sequential(nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 3)).eval()
trained = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 1))
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
inputs, outputs = torch.randn(4, 6, 30), [torch.empty(0)] * 4


def infer(number: int) -> None:
    with torch.inference_mode():
        for _ in range(50):
            outputs[number] = served(inputs[number])


threads = [threading.Thread(target=infer, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for _ in range(10):
    optimizer.zero_grad()
    trained(torch.randn(5, 30)).square().sum().backward()
    optimizer.step()
for thread in threads:
    thread.join()
print(threading.active_count(), [thread.name for thread in threading.enumerate()])
bits("outputs", outputs)
bits("weights", trained.parameters())
declare(model=trained, steps=10)
