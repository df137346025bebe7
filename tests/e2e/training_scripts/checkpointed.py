"""Activation checkpointing with dropout. Argument: ``reentrant`` or ``not``."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from witness import bits, declare

torch.manual_seed(14)
blocks = nn.ModuleList(nn.Sequential(nn.Linear(25, 25), nn.Dropout(0.3), nn.GELU()) for _ in range(4))
optimizer = torch.optim.AdamW(blocks.parameters())
reentrant = sys.argv[1] == "reentrant"
for _ in range(3):
    x = torch.randn(6, 25, requires_grad=True)
    y = checkpoint_sequential(list(blocks[:2]), 2, x, use_reentrant=reentrant)
    for block in blocks[2:]:
        y = checkpoint(block, y, use_reentrant=reentrant)
    optimizer.zero_grad()
    y.square().mean().backward()
    optimizer.step()
    print(y.sum().item().hex())
bits("weights", blocks.parameters())
del y
declare(steps=3)
