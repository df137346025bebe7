"""Trainings whose categories are held against torch.profiler's: each makes its own data and model.

Stage: tests; runs in a process of its own, under the tap and torch.profiler. A function builds the model
and returns one training step. Small, but shaped like what people train.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Step = Callable[[], None]


def mlp() -> Step:
    """Linear layers and Adam; a batch is made in each step."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        data, target = torch.randn(128, 256), torch.randint(0, 10, (128,))
        loss = functional.cross_entropy(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm_2 = nn.BatchNorm2d(channels)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm(self.first(data)))
        return functional.relu(data + self.norm_2(self.second(hidden)))


def cnn() -> Step:
    """Convolutions with BatchNorm, SGD with momentum, a loss module."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), _Residual(16),
        nn.MaxPool2d(2), _Residual(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()

    return step


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.qkv(self.norm_1(hidden)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return hidden + self.dropout(self.down(functional.gelu(self.up(self.norm_2(hidden)))))


class _Gpt(nn.Module):
    def __init__(self, *, reentrant: bool | None = None, layers: int = 4, width: int = 128) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.tokens, self.places = nn.Embedding(500, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList([_Block(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 500, bias=False)
        self.head.weight = self.tokens.weight  # tied

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden: torch.Tensor = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            if self.reentrant is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


def _gpt_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        data = torch.randint(0, 500, (8, 65))
        tokens, targets = data[:, :-1].contiguous(), data[:, 1:].contiguous()
        logits = model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def gpt() -> Step:
    """A GPT with tied weights, AdamW, clipped gradients, zero_grad at the end."""
    model = _Gpt()
    return _gpt_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def gpt_checkpoint() -> Step:
    """The same with activation checkpointing, as torch recommends it."""
    model = _Gpt(reentrant=False)
    return _gpt_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def gpt_checkpoint_reentrant() -> Step:
    """The same with the older way of checkpointing."""
    model = _Gpt(reentrant=True)
    return _gpt_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def autocast() -> Step:
    """bfloat16 autocast on CPU, two micro-batches a step, gradients zeroed in place."""
    model = nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256), nn.Linear(256, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        for _ in range(2):
            data, target = torch.randn(64, 256), torch.randint(0, 10, (64,))
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(model(data), target) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def gan() -> Step:
    """Two models and two optimizers, one of them fused."""
    generator = nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 784), nn.Tanh())
    critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), fused=True)
    critic_optimizer = torch.optim.RMSprop(critic.parameters())
    loss_of = nn.BCEWithLogitsLoss()

    def step() -> None:
        real, noise = torch.rand(64, 784), torch.randn(64, 64)
        ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
        made = generator(noise)
        critic_optimizer.zero_grad()
        (loss_of(critic(real), ones) + loss_of(critic(made.detach()), zeros)).backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        loss_of(critic(made), ones).backward()
        generator_optimizer.step()

    return step


def finetune() -> Step:
    """A frozen backbone, a mask as a buffer, batches from a DataLoader, validation without grad."""
    width = 128
    backbone = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, width)).requires_grad_(False)
    head = nn.Sequential(nn.Linear(width, 256), nn.Tanh(), nn.Linear(256, 5))
    head.register_buffer("mask", (torch.rand(width) > 0.5).float())
    optimizer = torch.optim.NAdam(head.parameters())
    dataset = torch.utils.data.TensorDataset(torch.randn(512, width), torch.randint(0, 5, (512,)))
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)

    def step() -> None:
        for index, (data, target) in enumerate(loader):
            if index == 3:
                break
            features = backbone(data) * head.get_buffer("mask")
            loss = functional.cross_entropy(head(features), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            (head(backbone(data)).argmax(1) == target).float().mean().item()

    return step


MODELS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (mlp, cnn, gpt, gpt_checkpoint, gpt_checkpoint_reentrant, autocast, gan, finetune)
}
