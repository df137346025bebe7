"""A script that imports torch and says when it had it, on CLOCK_MONOTONIC: what start time is measured by."""

import time

import torch

print(time.monotonic_ns(), torch.get_num_threads(), flush=True)
