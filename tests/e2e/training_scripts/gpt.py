"""A small GPT with tied weights, AdamW, clipped gradients, attention by scaled_dot_product_attention."""

import torch
from torch import nn
from torch.nn import functional
from witness import bits, declare

WIDTH = 48


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


torch.manual_seed(2)
model = nn.Sequential(nn.Embedding(97, WIDTH), Block(), Block(), nn.Linear(WIDTH, 97, bias=False))
model[3].weight = model[0].weight
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    tokens = torch.randint(97, (3, 17))
    loss = functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    print(loss.item().hex(), nn.utils.clip_grad_norm_(model.parameters(), 1.0).item().hex())
    optimizer.step()
bits("weights", model.parameters())
del loss
declare(model=model, steps=3)
