"""Allocates, then ends in the way of its argument."""

import os
import signal
import sys

import torch

kept = [torch.ones(1000) for _ in range(10)]
print("trained", flush=True)
match sys.argv[1]:
    case "raise":
        raise ValueError("the loss is nan")
    case "exit":
        sys.exit(3)
    case "text":
        sys.exit("a text")
    case "os._exit":
        os._exit(4)
    case "abort":
        os.abort()
    case "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    case "interrupt":
        signal.raise_signal(signal.SIGINT)
    case "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
