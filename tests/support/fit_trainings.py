"""Small trainings whose batch or length, or one remedy, can be chosen: what is predicted is held against
them.

``fit_trainings.py MODEL batch|length 2,4,8 [autocast]`` trains three steps of each size, in one process.
Stage: tests; runs in a recorded process. The models are others than those that the method was made with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import torch
from torch import nn
from torch.nn import functional

WORDS: Final = 600
BATCH: Final = 4
LENGTH: Final = 48
STEPS: Final = 3
"""Of each size."""

Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Rotary(nn.Module):
    """A decoder's layer as Llama's: rotary positions, grouped queries, gated feed-forward, explicit
    attention."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.part = heads, groups, width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * groups * self.part, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        size, length, _ = x.shape
        query = self.query(x).view(size, length, self.heads, self.part).transpose(1, 2)
        key, value = self.key_value(x).view(size, length, 2, self.groups, self.part).permute(2, 0, 3, 1, 4)
        angle = torch.outer(torch.arange(length), torch.arange(self.part // 2) * 0.1)
        query, key = turned(query, angle), turned(key, angle)
        key = key.repeat_interleave(self.heads // self.groups, 1)
        value = value.repeat_interleave(self.heads // self.groups, 1)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        out: torch.Tensor = self.out((weights @ value).transpose(1, 2).reshape(x.shape))
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.before(x))
        h = self.after(x)
        out: torch.Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return out


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Words(nn.Module):
    """Words, layers, a head."""

    def __init__(self, width: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        for layer in self.layers:
            h = layer(h)
        out: torch.Tensor = self.head(h)
        return out


class Mixer(nn.Module):
    """A layer of an MLP-Mixer over patches."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 96), nn.GELU(), nn.Linear(96, patches))
        self.within = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Dropout(), nn.Linear(3 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.norm(x).transpose(1, 2)).transpose(1, 2)
        out: torch.Tensor = x + self.within(self.norm_2(x))
        return out


class Patches(nn.Module):
    """A picture in patches, with a class token, through layers."""

    def __init__(self, width: int, layers: list[nn.Module], *, token: bool) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width)) if token else None
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cut(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            h = torch.cat([self.token.expand(len(h), -1, -1), h], 1)
        for layer in self.layers:
            h = layer(h)
        out: torch.Tensor = self.head(h[:, 0] if self.token is not None else h.mean(1))
        return out


class Variational(nn.Module):
    """A convolutional autoencoder that draws its code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1),
            nn.BatchNorm2d(24),
            nn.ELU(),
            nn.Conv2d(24, 48, 4, 2, 1),
            nn.GroupNorm(6, 48),
        )
        self.mean, self.spread = nn.Conv2d(48, 12, 1), nn.Conv2d(48, 12, 1)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(12, 24, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(24, 3, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.elu(self.encoder(x))
        mean, spread = self.mean(h), self.spread(h)
        out: torch.Tensor = self.decoder(mean + spread.exp() * torch.randn_like(mean))
        return out


class Dense(nn.Module):
    """Convolutions that each see all before them, as DenseNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 1, 1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(16 + 8 * k), nn.ReLU(), nn.Conv2d(16 + 8 * k, 8, 3, 1, 1))
            for k in range(5)
        )
        self.head = nn.Linear(56, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = torch.cat([h, layer(h)], 1)
        out: torch.Tensor = self.head(functional.avg_pool2d(h, 8).mean((2, 3)))
        return out


class Translator(nn.Module):
    """torch's own encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.body = nn.Transformer(64, 4, 2, 2, 160, batch_first=True, norm_first=True)
        self.head = nn.Linear(64, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        out: torch.Tensor = self.head(self.body(h, h, tgt_mask=mask, tgt_is_causal=True))
        return out


class Recurrent(nn.Module):
    """Gated recurrence in both directions under an attention over time."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.cells = nn.GRU(64, 80, 2, batch_first=True, bidirectional=True)
        self.score, self.head = nn.Linear(160, 1), nn.Linear(160, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cells(self.words(x))[0]
        weights = self.score(h).softmax(1)
        out: torch.Tensor = self.head(h + (weights * h).sum(1, keepdim=True))
        return out


def cross_entropy(out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Of each word or picture."""
    return functional.cross_entropy(out.reshape(-1, out.shape[-1]), wanted.reshape(-1))


def words(batch: int, length: int) -> Batch:
    """Sentences."""
    return torch.randint(0, WORDS, (batch, length)), torch.randint(0, WORDS, (batch, length))


def pictures(batch: int, length: int) -> Batch:
    """Pictures with classes; ``length`` has no part in them."""
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def copies(batch: int, length: int) -> Batch:
    """Pictures that are to come out again."""
    picture = torch.rand(batch, 3, 32, 32)
    return picture, picture


MODELS: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Batch], Loss]]] = {
    "llama": (lambda: Words(96, [Rotary(96, 6, 2) for _ in range(4)]), words, cross_entropy),
    "translator": (Translator, words, cross_entropy),
    "recurrent": (Recurrent, words, cross_entropy),
    "mixer": (lambda: Patches(80, [Mixer(64, 80) for _ in range(4)], token=False), pictures, cross_entropy),
    "deit": (
        lambda: Patches(
            64,
            [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(3)],
            token=True,
        ),
        pictures,
        cross_entropy,
    ),
    "variational": (Variational, copies, functional.binary_cross_entropy),
    "dense": (Dense, pictures, cross_entropy),
}
WITH_LENGTHS: Final = ("llama", "translator", "recurrent")


def main(model: str, what: str, sizes: list[int], autocast: list[int]) -> None:
    """Trains.

    Args:
        model: one of MODELS.
        what: batch or length.
        sizes: three steps of each.
        autocast: sizes at which it computes in bf16.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make, data, loss_of = MODELS[model]
    net = make()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for size in sizes:
        for _ in range(STEPS):
            inputs, wanted = data(size if what == "batch" else BATCH, size if what == "length" else LENGTH)
            with torch.autocast("cpu", torch.bfloat16, enabled=size in autocast):
                out = net(inputs)
                loss = loss_of(out.float(), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del inputs, wanted, out, loss


if __name__ == "__main__":
    lists = [[int(part) for part in text.split(",")] for text in [*sys.argv[3:], "0"][:2]]
    main(sys.argv[1], sys.argv[2], *lists)
