"""Trainings on two ranks over gloo, to be held against torch.profiler's categories: DDP and FSDP2.

Stage: tests. The process under the tap is rank 0. It starts rank 1 as a bare process, which does the same
steps until rank 0 is gone: ``python category_models_ranks.py MODEL STORE``.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional

Step = Callable[[], None]
RANKS = 2


def _net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(128, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 128), torch.randint(0, 10, (64,))


def ddp() -> Step:
    """DistributedDataParallel as it comes: gradients are copied to buckets and back."""
    return _ddp(view=False)


def ddp_view() -> Step:
    """Gradients are views of the buckets."""
    return _ddp(view=True)


def ddp_accumulate() -> Step:
    """Three micro-batches a step, the first two without communication."""
    return _ddp(view=False, micro_batches=3)


def ddp_view_accumulate() -> Step:
    """The same with gradients in the buckets."""
    return _ddp(view=True, micro_batches=3)


def _ddp(*, view: bool, micro_batches: int = 1) -> Step:
    model = nn.parallel.DistributedDataParallel(_net(), gradient_as_bucket_view=view, bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for number in range(micro_batches):
            data, target = _batch()
            is_last = number == micro_batches - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                functional.cross_entropy(model(data), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fsdp2() -> Step:
    """fully_shard on each linear layer and the whole."""
    return _fsdp2()


def fsdp2_accumulate() -> Step:
    """The same with two micro-batches a step, the first without a reduce-scatter."""
    return _fsdp2(micro_batches=2)


def fsdp2_mixed() -> Step:
    """The same with parameters gathered and gradients reduced in bfloat16, kept from forward to backward."""
    return _fsdp2(reshard=False, mixed=True)


def _fsdp2(*, micro_batches: int = 1, reshard: bool = True, mixed: bool = False) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = _net()
    mesh = init_device_mesh("cpu", (RANKS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if mixed else MixedPrecisionPolicy()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for number in range(micro_batches):
            data, target = _batch()
            model.set_requires_gradient_sync(number == micro_batches - 1)  # type: ignore[operator]
            functional.cross_entropy(model(data).float(), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


TRAININGS = {
    each.__name__: each
    for each in (
        ddp, ddp_view, ddp_accumulate, ddp_view_accumulate, fsdp2, fsdp2_accumulate, fsdp2_mixed,
    )
}  # fmt: skip


def on_two_ranks(name: str) -> Callable[[], Step]:
    """The training's function for rank 0, which starts the other rank first."""

    def build() -> Step:
        store = Path(tempfile.mkdtemp()) / "store"
        subprocess.Popen([sys.executable, __file__, name, str(store)], stderr=subprocess.DEVNULL)
        _join(store, rank=0)
        return TRAININGS[name]()

    return build


def _join(store: Path, rank: int) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)


MODELS = {name: on_two_ranks(name) for name in TRAININGS}


def main(name: str, store: Path) -> None:
    """Rank 1: trains until rank 0 is gone."""
    torch.set_num_threads(1)
    _join(store, rank=1)
    step = TRAININGS[name]()
    with contextlib.suppress(RuntimeError):  # rank 0 has finished: its connection is closed
        while True:
            step()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
