"""A training that holds a block and ends, or fails the agent, in a way that its argument names."""

import os
import signal
import sys
import threading

import torch
from torch import nn

way = sys.argv[1]
small = torch.zeros(512)


class Parts(dict):
    def items(self):
        raise TypeError("no parts here")


class Odd(nn.Module):
    """Its parts cannot be listed."""

    def __init__(self):
        super().__init__()
        self.__dict__["_modules"] = Parts()

    def forward(self, x):
        return x + 1


def fails():
    raise ValueError("in a thread")


if way == "agent_off":
    from rankmem_agent.preload import attach

    attach._agent._guard.failed(TypeError("an odd one"))
if way == "odd_module":
    Odd()(small)
held = torch.zeros(64 << 18)
print("held", held.numel(), flush=True)
if way == "raise":
    raise ValueError("as told")
if way == "interrupt":
    raise KeyboardInterrupt
if way == "thread":
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
if way == "children":
    for end in (sys.exit, os._exit):
        child = os.fork()
        if child == 0:
            end(7)
        os.waitpid(child, 0)
if way == "text":
    sys.exit("bad luck")
if way == "exit":
    sys.exit(3)
if way == "at_once":
    os._exit(5)
if way == "term":
    os.kill(os.getpid(), signal.SIGTERM)
if way == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
