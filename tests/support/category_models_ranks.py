"""Trainings on two ranks over gloo, to be held against torch.profiler's categories: DDP and FSDP2.

Stage: tests. The process under the tap is rank 0. It starts rank 1 as a bare process, which does the same
steps until rank 0 is gone: ``python category_models_ranks.py MODEL STORE``.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

RANKS = 2


def _net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(128, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model on two ranks and how it is trained."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    communicating: Callable[[bool], AbstractContextManager[None]]
    """Around a micro-batch: whether its gradients are reduced over the ranks."""
    num_micro_batches: int = 1

    def micro_batches(self) -> Iterator[tuple[bool, tuple[torch.Tensor, torch.Tensor]]]:
        """Data and targets of a step's micro-batches, each with whether it is the last."""
        for number in range(self.num_micro_batches):
            yield number == self.num_micro_batches - 1, (torch.randn(64, 128), torch.randint(0, 10, (64,)))

    def step(self) -> None:
        """One step."""
        for is_last, (data, target) in self.micro_batches():
            with self.communicating(is_last):
                functional.cross_entropy(self.model(data).float(), target).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def ddp() -> Training:
    """DistributedDataParallel as it comes: gradients are copied to buckets and back."""
    return _ddp(view=False)


def ddp_view() -> Training:
    """Gradients are views of the buckets."""
    return _ddp(view=True)


def ddp_accumulate() -> Training:
    """Three micro-batches a step, the first two without communication."""
    return _ddp(view=False, micro_batches=3)


def ddp_view_accumulate() -> Training:
    """The same with gradients in the buckets."""
    return _ddp(view=True, micro_batches=3)


def _ddp(*, view: bool, micro_batches: int = 1) -> Training:
    model = nn.parallel.DistributedDataParallel(_net(), gradient_as_bucket_view=view, bucket_cap_mb=0.5)
    return Training(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        communicating=lambda is_last: contextlib.nullcontext() if is_last else model.no_sync(),
        num_micro_batches=micro_batches,
    )


def fsdp2() -> Training:
    """fully_shard on each linear layer and the whole."""
    return _fsdp2()


def fsdp2_accumulate() -> Training:
    """The same with two micro-batches a step, the first without a reduce-scatter."""
    return _fsdp2(micro_batches=2)


def fsdp2_mixed() -> Training:
    """The same with parameters gathered and gradients reduced in bfloat16, kept from forward to backward."""
    return _fsdp2(reshard=False, mixed=True)


def _fsdp2(*, micro_batches: int = 1, reshard: bool = True, mixed: bool = False) -> Training:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model: Any = _net()
    mesh = init_device_mesh("cpu", (RANKS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if mixed else MixedPrecisionPolicy()
    for layer in [*(each for each in model if isinstance(each, nn.Linear)), model]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)

    @contextlib.contextmanager
    def communicating(is_last: bool) -> Iterator[None]:
        model.set_requires_gradient_sync(is_last)
        yield

    return Training(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        communicating=communicating,
        num_micro_batches=micro_batches,
    )


def fsdp1() -> Training:
    """FullyShardedDataParallel around each linear layer and the whole: the optimizer has flat parameters."""
    return _fsdp1()


def fsdp1_orig() -> Training:
    """The optimizer has the original parameters, views of the flat ones."""
    return _fsdp1(use_orig_params=True)


def fsdp1_accumulate() -> Training:
    """Two micro-batches a step, the first without a reduction."""
    return _fsdp1(micro_batches=2)


def fsdp1_mixed() -> Training:
    """Parameters gathered and gradients reduced in bfloat16, with original parameters."""
    return _fsdp1(use_orig_params=True, mixed=True)


def _fsdp1(*, micro_batches: int = 1, use_orig_params: bool = False, mixed: bool = False) -> Training:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    options: dict[str, Any] = {"use_orig_params": use_orig_params, "device_id": torch.device("cpu")}
    if mixed:
        options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    layers = [
        FullyShardedDataParallel(each, **options) if isinstance(each, nn.Linear) else each for each in _net()
    ]
    model: Any = FullyShardedDataParallel(nn.Sequential(*layers), **options)
    return Training(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        communicating=lambda is_last: contextlib.nullcontext() if is_last else model.no_sync(),
        num_micro_batches=micro_batches,
    )


TRAININGS: dict[str, Callable[[], Training]] = {
    each.__name__: each
    for each in (
        ddp, ddp_view, ddp_accumulate, ddp_view_accumulate, fsdp2, fsdp2_accumulate, fsdp2_mixed,
        fsdp1, fsdp1_orig, fsdp1_accumulate, fsdp1_mixed,
    )
}  # fmt: skip


def joined(name: str) -> Training:
    """A training as rank 0, with the other rank at its side."""
    join_as_first(__file__, name)
    return TRAININGS[name]()


def join_as_first(script: str, name: str) -> None:
    """Makes this process rank 0, and starts rank 1: ``python SCRIPT NAME STORE``."""
    store = Path(tempfile.mkdtemp()) / "store"
    subprocess.Popen([sys.executable, script, name, str(store)], stderr=subprocess.DEVNULL)
    _join(store, rank=0)


def train_as_second(store: Path, made: Callable[[], Callable[[], None]]) -> None:
    """Makes this process rank 1, which does steps until rank 0 is gone."""
    torch.set_num_threads(1)
    _join(store, rank=1)
    step = made()
    with contextlib.suppress(RuntimeError):  # rank 0 has finished: its connection is closed
        while True:
            step()


def _join(store: Path, rank: int) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)


def _steps(name: str) -> Callable[[], None]:
    return joined(name).step


MODELS = {name: functools.partial(_steps, name) for name in TRAININGS}
"""As category_models.MODELS."""


if __name__ == "__main__":
    train_as_second(Path(sys.argv[2]), lambda: TRAININGS[sys.argv[1]]().step)
