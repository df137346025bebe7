"""Small models for trainings that leak or do not: each gives a step that returns its loss and its output.

Stage: tests; runs in a recorded process. The first six are of the shapes that the rule was tuned on, the
others are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional

WORDS: Final = 512
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Model:
    """A model, its data by batch size and length, and its loss."""

    net: nn.Module
    batch: Callable[[int, int], Batch]
    loss: Callable[[torch.Tensor, Batch], torch.Tensor]


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class _Experts(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU()) for _ in range(4))
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = self.router(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            own = (chosen == number).nonzero().squeeze(-1)
            if len(own):
                out = out.index_add(0, own, self.out(expert(flat[own])) * weight[own, None])
        return x + out.view_as(x)


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.cells = kind(64, 128, 2, batch_first=True)
        self.head = nn.Linear(128, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.cells(self.words(x))[0])
        return out


class _Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 1, 1)
        self.up = nn.Conv2d(48, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = functional.silu(self.down(x))
        low = functional.silu(self.middle(functional.max_pool2d(high, 2)))
        out: torch.Tensor = self.up(torch.cat([functional.interpolate(low, scale_factor=2), high], 1))
        return out


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.body = nn.Transformer(64, 4, 1, 1, 128, batch_first=True)
        self.head = nn.Linear(64, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        out: torch.Tensor = self.head(self.body(h, h))
        return out


class _Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 64))
        self.decoder = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 3072))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encoder(x).chunk(2, 1)
        out: torch.Tensor = self.decoder(mean + spread.exp() * torch.randn_like(mean)).view_as(x)
        return out


class _Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.layers = nn.ModuleList(nn.Conv1d(64, 64, 3, padding=2**k, dilation=2**k) for k in range(4))
        self.head = nn.Linear(64, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x).transpose(1, 2)
        for layer in self.layers:
            h = h + torch.tanh(layer(h))
        out: torch.Tensor = self.head(h.transpose(1, 2))
        return out


def _text(net: nn.Module) -> Model:
    return Model(
        net, lambda b, n: (torch.randint(0, WORDS, (b, n)), torch.randint(0, WORDS, (b, n))), _entropy
    )


def _pictures(net: nn.Module) -> Model:
    return Model(net, lambda b, n: (torch.randn(b, 3, 32, 32), torch.randint(0, 10, (b,))), _entropy)


def _copies(net: nn.Module) -> Model:
    return Model(
        net,
        lambda b, n: (torch.randn(b, 3, 32, 32), torch.empty(0)),
        lambda out, batch: functional.mse_loss(out, batch[0]),
    )


def _entropy(out: torch.Tensor, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(out.reshape(-1, out.shape[-1]), batch[1].reshape(-1))


def _gpt() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(WORDS, 64), _Block(64), _Block(64), nn.LayerNorm(64), nn.Linear(64, WORDS)
    )


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for i, o in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def _vit() -> nn.Module:
    patches = nn.Sequential(nn.Conv2d(3, 64, 4, 4), nn.Flatten(2))
    head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64, 10))
    return nn.Sequential(patches, _Swap(), _Block(64), _Block(64), head)


class _Swap(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 128), nn.GELU(), nn.Dropout(), nn.Linear(128, 10))


MODELS: Final[dict[str, Callable[[], Model]]] = {
    "gpt": lambda: _text(_gpt()),
    "lstm": lambda: _text(_Recurrent(nn.LSTM)),
    "moe": lambda: _text(nn.Sequential(nn.Embedding(WORDS, 64), _Experts(64), nn.Linear(64, WORDS))),
    "resnet": lambda: _pictures(_convolutions()),
    "vit": lambda: _pictures(_vit()),
    "unet": lambda: _copies(_Unet()),
    "mlp": lambda: _pictures(_mlp()),
    "gru": lambda: _text(_Recurrent(nn.GRU)),
    "transformer": lambda: _text(_Transformer()),
    "autoencoder": lambda: _copies(_Autoencoder()),
    "waves": lambda: _text(_Waves()),
}
EARLIER: Final = ("gpt", "lstm", "moe", "resnet", "vit", "unet")
NEW: Final = ("mlp", "gru", "transformer", "autoencoder", "waves")
