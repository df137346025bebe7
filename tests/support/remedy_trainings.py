"""Small trainings with and without a remedy: what is predicted is held against what they then held.

``remedy_trainings.py MODEL CHANGE,CHANGE BATCH`` trains four steps with each change. Stage: tests; runs in a
recorded process. The models are others than those that the edits were made with. Of more than one rank it
runs under torchrun, over gloo.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fit_trainings import LENGTH, WORDS, Mixer, Patches, Rotary, cross_entropy, pictures, words

STEPS: Final = 4
CHUNKS: Final = 8
VOCABULARY: Final = 6000


class Decoder(nn.Module):
    """Words through layers; its head and loss in one, so that both can be taken in chunks."""

    def __init__(self, width: int, layers: list[nn.Module], vocabulary: int, change: str) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.change = change

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False) if self.change == "checkpoint" else layer(h)
        h = self.norm(h)
        if self.change != "chunks":
            return cross_entropy(self.head(h), wanted)

        def part(h: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.head(h), wanted, reduction="sum")

        parts = zip(h.flatten(0, 1).chunk(CHUNKS), wanted.flatten().chunk(CHUNKS), strict=True)
        losses = [checkpoint(part, *each, use_reentrant=False) for each in parts]
        return torch.stack(losses).sum() / wanted.numel()


class Classifier(nn.Module):
    """A net and its loss."""

    def __init__(self, net: Patches, change: str) -> None:
        super().__init__()
        self.net = net
        if change == "checkpoint":
            for layer in net.layers:
                forward = layer.forward
                layer.forward = _under(forward)  # type: ignore[method-assign]

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.net(x), wanted)


def _under(forward: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    return lambda x: checkpoint(forward, x, use_reentrant=False)


def encoder(width: int) -> nn.Module:
    """torch's own layer, its norm last."""
    return nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.1, batch_first=True)


def llama(change: str) -> nn.Module:
    """Rotary layers over a small vocabulary."""
    return Decoder(96, [Rotary(96, 6, 2) for _ in range(6)], WORDS, change)


def wide(change: str) -> nn.Module:
    """Few layers under a vocabulary that decides the peak."""
    return Decoder(64, [Rotary(64, 4, 4) for _ in range(2)], VOCABULARY, change)


def post_norm(change: str) -> nn.Module:
    """torch's encoder layers."""
    return Decoder(80, [encoder(80) for _ in range(5)], WORDS, change)


def mixer(change: str) -> nn.Module:
    """An MLP-Mixer over pictures."""
    return Classifier(Patches(80, [Mixer(64, 80) for _ in range(5)], token=False), change)


MODELS: Final = {"llama": llama, "wide": wide, "post_norm": post_norm, "mixer": mixer}
CHANGES: Final = (
    "base", "checkpoint", "chunks", "plain", "momentum", "foreach", "kept", "late", "accumulate", "zero1",
    "fsdp", "views",
)  # fmt: skip
"""kept: gradients stay (set_to_none=False); late: the step before is let go of late; plain, momentum: SGD
without state, with half of Adam's."""


def optimizer_of(net: nn.Module, change: str) -> torch.optim.Optimizer:
    """AdamW, but for a change of it."""
    if change in ("plain", "momentum"):
        return torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9 if change == "momentum" else 0.0)
    if change == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)
    return torch.optim.AdamW(net.parameters(), 1e-3, **({"foreach": False} if change == "foreach" else {}))


def parallel(net: nn.Module, change: str) -> nn.Module:
    """The net over all ranks."""
    if change == "fsdp":
        from torch.distributed.fsdp import fully_shard

        assert isinstance(net.layers, nn.ModuleList)
        for layer in net.layers:
            fully_shard(layer)
        fully_shard(net)
        return net
    return nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=change == "views")


def train(model: str, change: str, batch: int, *, is_parallel: bool) -> None:
    """Trains, and leaves nothing behind."""
    torch.manual_seed(0)
    net = MODELS[model](change)
    if is_parallel:
        net = parallel(net, change)
    optimizer = optimizer_of(net, change)
    parts = 2 if change == "accumulate" else 1
    for _ in range(STEPS):
        for _ in range(parts):
            if model == "mixer":
                inputs, wanted = pictures(batch // parts, 0)
            else:
                inputs, wanted = words(batch // parts, LENGTH)
            loss = net(inputs, wanted) / parts
            loss.backward()
            if change != "late":
                del inputs, wanted, loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=change != "kept")


def main(model: str, changes: list[str], batch: int) -> None:
    """One training after another: the last step of each is the one that is looked at."""
    torch.set_num_threads(1)
    is_parallel = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_parallel:
        torch.distributed.init_process_group("gloo")
    for change in changes:
        train(model, change, batch, is_parallel=is_parallel)
        gc.collect()
    if is_parallel:
        time.sleep(0.1)  # or gloo may hang: docs/launchers.md
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))
