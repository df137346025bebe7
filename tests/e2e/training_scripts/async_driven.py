"""A training driven by asyncio: steps in tasks, inference in a thread, a subprocess meanwhile."""

import asyncio
import sys

import torch
from torch import nn
from witness import bits, declare

torch.manual_seed(26)
model = nn.Sequential(nn.Linear(20, 41), nn.ReLU(), nn.Linear(41, 2))
optimizer = torch.optim.AdamW(model.parameters())


async def train(lock: asyncio.Lock) -> None:
    for _ in range(3):
        async with lock:
            optimizer.zero_grad()
            model(torch.ones(4, 20)).square().sum().backward()
            optimizer.step()
        await asyncio.sleep(0)


async def main() -> None:
    lock = asyncio.Lock()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", "print(6 * 7)", stdout=asyncio.subprocess.PIPE
    )
    await asyncio.gather(train(lock), train(lock))
    with torch.no_grad():
        result = await asyncio.to_thread(model, torch.ones(1, 20))
    print((await child.communicate())[0], await child.wait(), result.tolist())


asyncio.run(main())
bits("weights", model.parameters())
declare(model=model, steps=6)
