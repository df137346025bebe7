"""Trainings whose ranks no launcher numbers: ``starts_ranks.py WAY STORE``."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def train(steps: int = 3, model: torch.nn.Module | None = None) -> None:
    """A few steps of a small model."""
    torch.manual_seed(0)
    model = model or torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def as_rank(rank: int, ranks: int, store: str) -> None:
    """One rank, whose number only its process group knows."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    train(model=torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64)))
    dist.barrier()
    time.sleep(0.1)  # or gloo may hang: docs/launchers.md
    dist.destroy_process_group()


def spawn(store: str) -> None:
    """``torch.multiprocessing.spawn``, twice in a row."""
    mp.spawn(as_rank, args=(RANKS, store), nprocs=RANKS)


def processes(store: str, method: str) -> None:
    """``multiprocessing.Process``, as in PyTorch's tutorials."""
    context = multiprocessing.get_context(method)
    started = [context.Process(target=as_rank, args=(rank, RANKS, store)) for rank in range(RANKS)]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0


def children(store: str) -> None:
    """As Lightning's ddp: the first process is rank 0 and starts the others with LOCAL_RANK, without RANK."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.randn(1000)
    started = []
    if "LOCAL_RANK" not in os.environ:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29999", NODE_RANK="0", WORLD_SIZE=str(RANKS))
        os.environ["LOCAL_RANK"] = "0"
        for rank in range(1, RANKS):
            command = [sys.executable, __file__, "children", store]
            started.append(subprocess.Popen(command, env=os.environ | {"LOCAL_RANK": str(rank)}))
    as_rank(local_rank, RANKS, store)
    assert [child.wait() for child in started] == [0] * len(started)


def wrapper(store: str, times: int = 1) -> None:
    """Prepares something with torch and leaves the training to another process."""
    torch.randn(1000)
    for _ in range(times):
        subprocess.run([sys.executable, __file__, "train", store], check=True)


def evaluates(store: str) -> None:
    """A rank that starts another training of its own, while it trains itself."""
    train()
    subprocess.run([sys.executable, __file__, "train", store], check=True)
    subprocess.run([sys.executable, "-c", "import torch; torch.nn.Linear(2, 2)(torch.randn(2))"], check=True)
    train()


def _no_training(number: int) -> int:
    return int(torch.nn.Linear(8, 8)(torch.ones(8)).numel()) + number


def helpers(store: str) -> None:
    """A rank with children that use torch and train nothing."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        assert pool.map(_no_training, range(4)) == [8, 9, 10, 11]
    process = context.Process(target=_no_training, args=(1,))
    process.start()
    process.join()
    train()


def _infer(rank: int) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
    for _ in range(200):
        model(torch.ones(8))


def infers(store: str) -> None:
    """Inference in workers that nothing numbers."""
    mp.spawn(_infer, nprocs=RANKS)


def forked(store: str) -> None:
    """Ranks forked from a process that has torch, as notebooks start them."""
    processes(store, "fork")


def plain(store: str) -> None:
    """Neither a module nor an optimizer."""
    kept = [torch.randn(1000) for _ in range(20)]
    assert len(kept) == 20


def serves(store: str) -> None:
    """Inference that does not end by itself."""
    model = torch.nn.Linear(8, 8)
    Path(store).with_suffix(".ready").write_text("")
    while True:
        model(torch.randn(8))
        time.sleep(0.01)


def tensors(store: str) -> None:
    """Tensors without modules, without an end: soon more than may be recorded of what is no rank yet."""
    while True:
        for _ in range(100):
            torch.randn(8)
        time.sleep(0.001)


if __name__ == "__main__":
    way, store, *rest = sys.argv[1:]
    if way in ("spawn", "spawn_twice"):
        for turn in range(1 + (way == "spawn_twice")):
            spawn(f"{store}-{turn}")
    elif way in ("forkserver", "fork", "spawned"):
        processes(store, "spawn" if way == "spawned" else way)
    elif way == "wrapper":
        wrapper(store, int(rest[0]) if rest else 1)
    elif way == "train":
        train()
    else:
        {f.__name__: f for f in (children, evaluates, helpers, infers, forked, plain, serves, tensors)}[way](
            store
        )
    print("done", way)
