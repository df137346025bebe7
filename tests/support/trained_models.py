"""Trains one of several small models under the real tap and the real hooks, into a spool; a script.

``python trained_models.py MODEL SPOOL_FOLDER STEPS``: no preload, no shipper, no aggregator. The call of
``backward()`` stands in a range of the name BACKWARD: an account of what backward allocates that owes nothing
to autograd's numbers. Every width is a number of its own, so that a gradient's size names its layer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hooked import hook
from rankmem_agent import annotate
from rankmem_agent.hooks import user_api as told
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Tap, What

BACKWARD = "the call of backward"
BUDGET_BYTES = 64 << 20

Step = Callable[[], None]


class Mlp(nn.Module):
    """Three layers of widths that occur once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(96, 160), nn.Linear(160, 224), nn.Linear(224, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x).relu()).relu())  # type: ignore[no-any-return]


class Cnn(nn.Module):
    """Convolutions, batch norm, a skip and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.head = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.stem(x), 2)
        return self.head((x + self.body(x)).mean((2, 3)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and MLP with skips."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
        self.back = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.back(self.mlp(x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Tokens in, logits out; each block under a checkpoint where wanted.

    Args:
        reentrant: None for no checkpoint, else its kind.
    """

    def __init__(self, *, reentrant: bool | None = None, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.tokens = nn.Embedding(200, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 200, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)  # type: ignore[no-any-return]


def backward(loss: torch.Tensor) -> None:
    """loss.backward(), in its range."""
    with annotate(BACKWARD):
        loss.backward()  # type: ignore[no-untyped-call]


def mlp() -> Step:
    """The MLP with SGD and momentum."""
    return _supervised(Mlp(), lambda: torch.randn(32, 96), 10)


def cnn() -> Step:
    """The CNN."""
    return _supervised(Cnn(), lambda: torch.randn(4, 3, 16, 16), 10)


def gpt() -> Step:
    """The GPT."""
    return _language(Gpt())


def gpt_checkpoint() -> Step:
    """The GPT, each block under a checkpoint that is not reentrant."""
    return _language(Gpt(reentrant=False))


def gpt_reentrant() -> Step:
    """The GPT, each block under a reentrant checkpoint."""
    return _language(Gpt(reentrant=True))


def autocast() -> Step:
    """The GPT in mixed precision."""
    return _language(Gpt(), mixed=True)


def two_optimizers() -> Step:
    """A generator and a critic, stepped in turn."""
    generator, critic = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 32)), nn.Linear(32, 1)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]

    def step() -> None:
        for sign, optimizer in ((1, optimizers[1]), (-1, optimizers[0])):
            optimizer.zero_grad()
            backward(sign * critic(generator(torch.randn(64, 8))).mean())
            optimizer.step()

    return step


def closure() -> Step:
    """Forward and backward in a closure that the optimizer runs: LBFGS needs it, Lightning always does it."""
    model = nn.Sequential(nn.Linear(96, 160), nn.ReLU(), nn.Linear(160, 10))
    optimizer = torch.optim.Adam(model.parameters())

    def loss() -> float:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(torch.randn(32, 96)), torch.randint(10, (32,)))
        backward(value)
        return float(value)

    return lambda: optimizer.step(loss)  # type: ignore[func-returns-value]


MODELS = {
    step.__name__: step
    for step in (mlp, cnn, gpt, gpt_checkpoint, gpt_reentrant, autocast, two_optimizers, closure)
}


def main(name: str, folder: Path, steps: int) -> None:
    """Trains the model, recorded."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tap = _recording(folder)
    step = MODELS[name]()
    for _ in range(steps):
        step()
    tap.stop_stacks()
    tap.close()


def _supervised(model: nn.Module, batch: Callable[[], torch.Tensor], classes: int) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        x = batch()
        loss = nn.functional.cross_entropy(model(x), torch.randint(classes, (len(x),)))
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()

    return step


def _language(model: nn.Module, *, mixed: bool = False) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        tokens = torch.randint(200, (4, 24))
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()

    return step


def _recording(folder: Path) -> Tap:
    """The tap with everything on, and the hooks that the agent installs."""
    tap = Tap(build_tap())
    tap.open(folder, BUDGET_BYTES)
    tap.attach_cpu()
    tap.attach_calls()
    tap.enable(What.CPU_EVENTS | What.CALLS | What.STACKS)
    told.connect(tap, hook(tap, torch.compiler.is_compiling).steps, torch.compiler.is_compiling)
    return tap


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
