"""What the trainings do in a step, by name; ``train.py`` runs them.

Stage: the user's script, which knows nothing of rankmem. Each is a function from :class:`Options` to a step.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpu.models import Chain, Gpt, ResNet

Step = Callable[[], None]
MIB: Final = 1 << 20
TOO_MUCH_BYTES: Final = 1 << 50
LATE_STEP: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a training is to run."""

    device: str
    batch: int
    bf16: bool = False
    scale: int = 8
    """Of ``churn``: its blocks are up to 4 MiB times this, and up to 51 times so many MiB are alive."""
    whole: bool = False
    """The models as they are on a GPU, also on a CPU."""

    @property
    def small(self) -> bool:
        """On a CPU models are small."""
        return self.device == "cpu" and not self.whole


def gpt(options: Options) -> Step:
    """A GPT with AdamW."""
    return _gpt(options, lambda model: model)


def compiled(options: Options) -> Step:
    """The GPT under torch.compile."""
    return _gpt(options, torch.compile)


def compiled_graphs(options: Options) -> Step:
    """The GPT under torch.compile with CUDA graphs, which have private pools."""
    return _gpt(options, lambda model: torch.compile(model, mode="reduce-overhead"))


def _gpt(options: Options, prepared: Callable[[nn.Module], Callable[..., Tensor]]) -> Step:
    model = Gpt(small=options.small).to(options.device)
    call = prepared(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, model.words, (options.batch, model.length), device=options.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16, enabled=options.bf16):
            logits = call(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()

    return step


def resnet(options: Options) -> Step:
    """A ResNet with momentum; images come out of pinned memory in each step."""
    model = ResNet(small=options.small).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    side = 32 if options.small else 224

    def step() -> None:
        images = torch.randn(options.batch, 3, side, side, pin_memory=options.device == "cuda")
        images = images.to(options.device, non_blocking=True)
        labels = torch.randint(0, 1000, (options.batch,), device=options.device)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def chain(options: Options) -> Step:
    """Bound by launches."""
    model = Chain().to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    data = torch.randn(options.batch, 64, device=options.device)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def streams(options: Options) -> Step:
    """Tensors made on a side stream and used on the current one: their frees wait for it."""
    side = torch.cuda.Stream()

    def step() -> None:
        current = torch.cuda.current_stream()
        with torch.cuda.stream(side):
            made = [torch.randn(MIB, device=options.device) for _ in range(8)]
        current.wait_stream(side)
        for tensor in made:
            tensor.record_stream(current)
            for _ in range(20):  # the current stream is behind when the tensor is freed
                tensor = tensor * 1.01
        made.clear()
        torch.randn(4 * MIB, device=options.device).mul_(2)

    return step


def graphs(options: Options) -> Step:
    """A captured CUDA graph, which has a private pool, replayed beside eager work."""
    model = Chain().to(options.device)
    data = torch.randn(options.batch, 64, device=options.device)
    with torch.no_grad():
        model(data)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(data)

    def step() -> None:
        graph.replay()
        (result * 2).sum()

    return step


def pinned(options: Options) -> Step:
    """Pinned host memory: some kept, some given back in each step."""
    kept: list[Tensor] = []

    def step() -> None:
        kept.append(torch.empty(MIB, pin_memory=True))
        passing = torch.empty(4 * MIB, pin_memory=True)
        passing.to(options.device, non_blocking=True)
        torch.cuda.synchronize()

    return step


def inference(options: Options) -> Step:
    """A GPT without an optimizer, given the same tokens in each call."""
    model = Gpt(small=options.small).to(options.device).eval()
    tokens = torch.randint(0, model.words, (options.batch, model.length), device=options.device)

    def step() -> None:
        with torch.inference_mode():
            model(tokens)

    return step


def caught(options: Options) -> Step:
    """A GPT's step, then a request that is too large, caught."""
    train = gpt(options)

    def step() -> None:
        train()
        with contextlib.suppress(RuntimeError):
            torch.empty(TOO_MUCH_BYTES, dtype=torch.uint8, device=options.device)

    return step


def caught_late(options: Options) -> Step:
    """The GPT, and a module that asks for too much in the 16th step (``exact.LATE_STEP``), caught."""
    train, asks, numbers = gpt(options), _Asks(), itertools.count(1)
    data = torch.ones(1, device=options.device)

    def step() -> None:
        with contextlib.suppress(RuntimeError):
            asks(data, TOO_MUCH_BYTES if next(numbers) == LATE_STEP else 1)
        train()

    return step


class _Asks(nn.Module):
    def forward(self, data: Tensor, num_bytes: int) -> Tensor:
        return data + torch.empty(num_bytes, dtype=torch.uint8, device=data.device)


def full(options: Options) -> Step:
    """Keeps more in each step until the device, or what is allowed of it, is full."""
    train = gpt(options)
    kept: list[Tensor] = []

    def step() -> None:
        train()
        kept.extend(torch.empty(256 * MIB, dtype=torch.uint8, device=options.device) for _ in range(8))

    return step


def churn(options: Options) -> Step:
    """Requests at random on two streams, and emptied caches; no kernel runs."""
    chance = random.Random(7)
    held: list[Tensor] = []
    most, top = options.scale * 51 * MIB, 22 + math.log2(options.scale)
    side = torch.cuda.Stream() if options.device == "cuda" else None

    def take(size: int) -> Tensor:
        apart = side is not None and chance.random() < 0.2
        with torch.cuda.stream(side) if apart else contextlib.nullcontext():
            return torch.empty(size, dtype=torch.uint8, device=options.device)

    def step() -> None:
        for _ in range(400):
            size = int(2 ** chance.uniform(7, top))
            while held and sum(each.numel() for each in held) + size > most:
                held.pop(chance.randrange(len(held)))
            try:
                held.append(take(size))
            except torch.OutOfMemoryError:  # where little is allowed
                del held[::2]
            if held and chance.random() < 0.4:
                held.pop(chance.randrange(len(held)))
        if options.device == "cuda" and chance.random() < 0.3:
            torch.cuda.empty_cache()

    return step


WORKLOADS: Final[dict[str, Callable[[Options], Step]]] = {
    each.__name__: each
    for each in (
        gpt, compiled, compiled_graphs, resnet, chain, inference, streams, graphs, pinned, caught,
        caught_late, full, churn,
    )
}  # fmt: skip
