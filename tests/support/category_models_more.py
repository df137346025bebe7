"""Ways of training beyond the six models of the goal, to be held against torch.profiler's categories.

Stage: tests; as category_models. Each tests one case in which a category may be wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], None]


def _net(width: int = 256) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(128, width), nn.GELU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)
    )


def _batch(size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 128), torch.randint(0, 10, (size,))


def _supervised(model: nn.Module, optimizer: torch.optim.Optimizer, *, set_to_none: bool = True) -> Step:
    def step() -> None:
        data, target = _batch()
        functional.cross_entropy(model(data), target).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)

    return step


def sgd_foreach() -> Step:
    """A foreach optimizer, gradients set to None."""
    model = _net()
    return _supervised(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, foreach=True))


def adam_fused() -> Step:
    """A fused optimizer, gradients zeroed in place."""
    model = _net()
    return _supervised(model, torch.optim.Adam(model.parameters(), fused=True), set_to_none=False)


def adam_single() -> Step:
    """One parameter at a time, with amsgrad."""
    model = _net()
    return _supervised(model, torch.optim.Adam(model.parameters(), foreach=False, amsgrad=True))


def accumulation() -> Step:
    """Three micro-batches a step, gradients set to None."""
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for _ in range(3):
            data, target = _batch()
            (functional.cross_entropy(model(data), target) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def scaler() -> Step:
    """GradScaler and autocast."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scales = torch.amp.GradScaler("cpu")

    def step() -> None:
        data, target = _batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(model(data).float(), target)
        scales.scale(loss).backward()
        scales.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scales.step(optimizer)
        scales.update()
        optimizer.zero_grad()

    return step


def moved() -> Step:
    """A model that changes its type, and so its storages, after its construction and once it has run."""
    model = _net().double()
    model(torch.randn(4, 128, dtype=torch.double))
    model.float()
    return _supervised(model, torch.optim.AdamW(model.parameters()))


class _Lora(nn.Module):
    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width_in, width_out).requires_grad_(False)
        self.down, self.up = nn.Linear(width_in, 8, bias=False), nn.Linear(8, width_out, bias=False)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.frozen(data) + self.up(self.down(data))  # type: ignore[no-any-return]


def lora() -> Step:
    """Frozen layers with small trained ones beside each."""
    model = nn.Sequential(_Lora(128, 512), nn.GELU(), _Lora(512, 512), nn.GELU(), _Lora(512, 10))
    return _supervised(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]))


def frozen_embedding() -> Step:
    """Frozen word vectors below a trained model."""
    words = nn.Embedding(1000, 128).requires_grad_(False)
    model = nn.Sequential(words, nn.Flatten(), nn.Linear(16 * 128, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])

    def step() -> None:
        tokens, target = torch.randint(0, 1000, (64, 16)), torch.randint(0, 10, (64,))
        functional.cross_entropy(model(tokens), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def double_backward() -> Step:
    """retain_graph, and the graph gone through twice."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        data, target = _batch()
        loss = functional.cross_entropy(model(data), target)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def penalty() -> Step:
    """A gradient penalty: torch.autograd.grad with create_graph, and a backward through it."""
    model = nn.Sequential(nn.Linear(128, 256), nn.Softplus(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        data = torch.randn(64, 128, requires_grad=True)
        score = model(data)
        (slope,) = torch.autograd.grad(score.sum(), data, create_graph=True)
        (score.mean() + ((slope.norm(dim=1) - 1) ** 2).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def functional_gradients() -> Step:
    """torch.autograd.grad in the place of backward, and no optimizer."""
    model = _net()
    parameters = list(model.parameters())

    def step() -> None:
        data, target = _batch()
        gradients = torch.autograd.grad(functional.cross_entropy(model(data), target), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.01 * gradient

    return step


def skipped_steps() -> Step:
    """A scaler that finds infinite gradients skips every other step: no optimizer sees those gradients."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    count = iter(range(1000))

    def step() -> None:
        data, target = _batch()
        functional.cross_entropy(model(data), target).backward()
        if next(count) % 2:
            optimizer.step()
        optimizer.zero_grad()

    return step


class _Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(data)
        return data * torch.sigmoid(data)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (data,) = ctx.saved_tensors
        gate = torch.sigmoid(data)
        return gradients[0] * gate * (1 + data * (1 - gate))


class _SwishLayer(nn.Module):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return _Swish.apply(data)  # type: ignore[no-any-return, no-untyped-call]


def custom_function() -> Step:
    """A torch.autograd.Function of the user's."""
    model = nn.Sequential(
        nn.Linear(128, 512), _SwishLayer(), nn.Linear(512, 512), _SwishLayer(), nn.Linear(512, 10)
    )
    return _supervised(model, torch.optim.AdamW(model.parameters()))


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 64)
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.words(tokens))
        return self.head(hidden[:, -1])  # type: ignore[no-any-return]


def lstm() -> Step:
    """A recurrent net of two layers with dropout."""
    model = _Tagger()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        tokens, target = torch.randint(0, 500, (16, 24)), torch.randint(0, 10, (16,))
        functional.cross_entropy(model(tokens), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def sparse() -> Step:
    """An embedding with sparse gradients."""
    words = nn.EmbeddingBag(5000, 64, sparse=True, mode="sum")
    head = nn.Linear(64, 10)
    optimizers = [torch.optim.SparseAdam(words.parameters()), torch.optim.Adam(head.parameters())]

    def step() -> None:
        tokens, target = torch.randint(0, 5000, (64, 16)), torch.randint(0, 10, (64,))
        functional.cross_entropy(head(words(tokens)), target).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(128, 4)
        self.experts = nn.ModuleList(nn.Linear(128, 256) for _ in range(4))
        self.head = nn.Linear(256, 10)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        scores = self.router(data).softmax(-1)
        chosen = scores.argmax(-1)
        every = torch.stack([expert(data) for expert in self.experts], 1)
        mask = functional.one_hot(chosen, 4).to(every.dtype)
        hidden = (every * (mask * scores).unsqueeze(-1)).sum(1)
        hidden = hidden * (hidden > 0)
        return self.head(hidden)  # type: ignore[no-any-return]


def experts() -> Step:
    """Routing: argmax, one_hot and comparisons depend on parameters and make no autograd node."""
    model = _Experts()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        data, target = _batch(256)
        output = model(data)
        hits = (output.argmax(1) == target).float()
        functional.cross_entropy(output, target).backward()
        optimizer.step()
        optimizer.zero_grad()
        hits.mean().item()

    return step


def averaged() -> Step:
    """A running average of the weights in a copy of the model, and a target computed by it without grad."""
    model = _net()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        data, _ = _batch()
        with torch.no_grad():
            target = average(data)
        functional.mse_loss(model(data), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.01)

    return step


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        far = torch.full((tokens.shape[1],) * 2, float("-inf")).triu(1)
        padding = tokens == 0
        hidden = self.layer(hidden, src_mask=far, src_key_padding_mask=padding.float() * -1e9)
        return self.head(hidden.mean(1))  # type: ignore[no-any-return]


def masks() -> Step:
    """Masks computed in forward, after the first layer has run."""
    model = _Masked()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        tokens, target = torch.randint(0, 500, (16, 32)), torch.randint(0, 10, (16,))
        functional.cross_entropy(model(tokens), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def stop_gradient() -> Step:
    """Vector quantisation: the codes are found on detached activations."""
    encoder, decoder = nn.Linear(128, 64), nn.Linear(64, 128)
    codes = nn.Parameter(torch.randn(256, 64))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), codes])

    def step() -> None:
        data, _ = _batch(256)
        hidden = encoder(data)
        near = torch.cdist(hidden.detach(), codes.detach()).argmin(1)
        chosen = codes[near]
        through = hidden + (chosen - hidden).detach()
        loss = functional.mse_loss(decoder(through), data) + functional.mse_loss(chosen, hidden.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def closure() -> Step:
    """Forward and backward within the optimizer's step, in a closure."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters())

    def loss() -> float:
        data, target = _batch()
        value = functional.cross_entropy(model(data), target)
        optimizer.zero_grad()
        value.backward()
        return float(value)

    return lambda: optimizer.step(loss)  # type: ignore[func-returns-value]


def q_learning() -> Step:
    """A target computed without autograd by a second net, and worked on with it before the first one runs."""
    online = _net()
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters())

    def step() -> None:
        (before, actions), (after, rewards) = _batch(256), _batch(256)
        with torch.no_grad():
            best = target(after).max(1).values
        goal = rewards + 0.99 * best
        chosen = online(before).gather(1, actions.unsqueeze(1)).squeeze(1)
        functional.smooth_l1_loss(chosen, goal).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class _Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(32, 3, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        wide = self.first(data)
        narrow = functional.dropout(self.up(self.down(wide)), 0.1)
        return self.last(torch.cat([narrow, wide], 1))  # type: ignore[no-any-return]


def unet() -> Step:
    """Convolutions down and up, a skip, and an optimizer whose only state is a momentum."""
    model = _Unet()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)

    def step() -> None:
        data = torch.randn(8, 3, 32, 32)
        functional.l1_loss(model(data), data).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


MODELS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (
        sgd_foreach, adam_fused, adam_single, accumulation, scaler, moved, lora, frozen_embedding,
        double_backward, penalty, functional_gradients, skipped_steps, custom_function, lstm, sparse,
        experts, averaged, masks, stop_gradient, closure, q_learning, unet,
    )
}  # fmt: skip
