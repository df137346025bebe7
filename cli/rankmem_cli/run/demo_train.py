"""The training that ``rankmem demo`` records: a small GPT under DistributedDataParallel.

Stage: trainer; started by torchrun like any user's script, and unaware of rankmem. NCCL where
each rank has a GPU of its own (it refuses two ranks on one), else gloo. Seeded, so that two runs print
the same losses. As with real data, texts differ in length from batch to batch and from rank to rank: that
is why the ranks' peaks differ.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 1024
WIDTH = 256
HEADS = 4
LAYERS = 4
BATCH = 8
LENGTHS = (48, 128)
"""Shortest and longest text of a batch, in tokens: about 80 ms a step on one core of 2024."""
PRINT_EVERY = 5


class Block(nn.Module):
    """A transformer block: causal attention, then an MLP, each with its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        heads = self.qkv(self.attention_norm(hidden)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        expanded: Tensor = self.down(functional.gelu(self.up(self.mlp_norm(hidden))))
        return hidden + expanded


class Gpt(nn.Module):
    """Token and position embeddings, blocks, a separate head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTHS[1], WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def next_batch(chance: torch.Generator, device: torch.device) -> Tensor:
    """Token ids of shape [BATCH, length]; the length differs from batch to batch."""
    length = int(torch.randint(LENGTHS[0], LENGTHS[1] + 1, (), generator=chance))
    return torch.randint(VOCABULARY, (BATCH, length), generator=chance).to(device)


def own_device() -> torch.device:
    """This rank's device, made current: a GPU where there is one, shared if there are too few."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def train(steps: int, seed: int) -> None:
    """Trains for ``steps`` steps on this rank; rank 0 prints the loss every few steps."""
    rank, device = dist.get_rank(), own_device()
    torch.manual_seed(seed)
    model = DistributedDataParallel(Gpt().to(device), device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    chance = torch.Generator().manual_seed(seed + 1 + rank)
    for step in range(steps):
        tokens = next_batch(chance, device)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if rank == 0 and (step % PRINT_EVERY == 0 or step == steps - 1):
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Reads the arguments, joins the group, trains, leaves."""
    parser = argparse.ArgumentParser(description="A small GPT on every rank that torchrun starts.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the ranks of a demo share a few cores, and more threads only compete
    has_own_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("nccl" if has_own_gpu else "gloo")
    try:
        train(arguments.steps, arguments.seed)
    finally:
        time.sleep(0.1)  # or gloo may hang: docs/launchers.md
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
