"""Gradient accumulation under autocast, with a GradScaler on CPU that skips a step of infinite gradients."""

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(33, 47), nn.GELU(), nn.LayerNorm(47), nn.Linear(47, 3))
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(4):
    optimizer.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(9, 33)).square().mean() / 2
        scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(loss.item().hex(), scaler.get_scale())
bits("weights", model.parameters())
declare(model=model)
