"""The models that are trained on a GPU: a GPT of > 100 M parameters, a ResNet-50, a chain of small layers.

Stage: the user's script, which knows nothing of rankmem. ``small`` is for rehearsals on a CPU.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS: Final = 32_000
LENGTH: Final = 512


class Block(nn.Module):
    """A transformer block: causal attention, then an MLP, each with its residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        """``[batch, length, width]`` in and out."""
        batch, length, width = hidden.shape
        parts = self.qkv(self.attention_norm(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return out


class Gpt(nn.Module):
    """134 M parameters: 12 layers of width 768, embeddings and a head of 32,000 words each; small: 0.5 M."""

    def __init__(self, *, small: bool) -> None:
        super().__init__()
        words, width, layers = (500, 64, 2) if small else (WORDS, 768, 12)
        self.words = words
        self.length = 32 if small else LENGTH
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(self.length, width)
        self.blocks = nn.ModuleList(Block(width, width // 64 or 1) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[batch, length, words]``."""
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Bottleneck(nn.Module):
    """A residual block of three convolutions."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.ways = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = (
            nn.Identity()
            if stride == 1 and channels == out
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, data: Tensor) -> Tensor:
        """``[batch, channels, height, width]`` in and out."""
        return functional.relu(self.ways(data) + self.short(data))


class ResNet(nn.Module):
    """ResNet-50, 25 M parameters; small: one block a stage, a fourth as wide."""

    def __init__(self, *, small: bool) -> None:
        super().__init__()
        depths, inner = ((1, 1, 1, 1), 16) if small else ((3, 4, 6, 3), 64)
        channels = inner
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        for number, depth in enumerate(depths):
            for block in range(depth):
                layers.append(Bottleneck(channels, inner, 2 if number and not block else 1))
                channels = 4 * inner
            inner *= 2
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(channels, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[batch, 1000]``."""
        logits: Tensor = self.head(self.layers(images))
        return logits


class Chain(nn.Module):
    """Small operators one after the other: Python, not the device, is what a step waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(60))

    def forward(self, data: Tensor) -> Tensor:
        """``[batch, 64]`` in and out."""
        for layer in self.layers:
            data = torch.tanh(layer(data)) * 0.5 + data
        return data
