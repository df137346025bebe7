"""The training that the benchmarks time: a small GPT on CPU, one thread a rank, DDP under torchrun.

Stage: the user's script. It knows nothing of rankmem and runs the same with and without it, but for
``--switch``: then it takes the tap that the agent has loaded into this process and turns its recording
off and on in turn, which compares the two on the same memory, in the same minute.
Writes a JSON object to ``--out`` (of rank 0): time and CPU time of each step, whether it was recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TAP_ALL = 1 | 2 | 4 | 8  # rkm_enable's bits: cpu events, cuda events, calls, stacks
PROFILER_CYCLE_STEPS = 20  # a cycle is what a user would keep in memory before exporting


class Block(nn.Module):
    """Pre-norm attention and MLP, written out so that there are many small operators as in real models."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, sequence, width]`` in and out."""
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention with the scores materialised."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a head of its own."""

    def __init__(self, *, vocabulary: int, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``[batch, sequence, vocabulary]``."""
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def main() -> None:
    """Trains, and writes how long each step took."""
    arguments = _arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        torch.distributed.init_process_group("gloo")
    step = _step_function(arguments, distributed)
    for _ in range(arguments.warmup):
        step()
    with profiler_cycles(arguments.profile_folder) as end_of_step:
        result = _timed(step, end_of_step, arguments.steps, arguments.switch)
    result["resident_bytes"] = _resident_bytes_besides_spool()
    if int(os.environ.get("RANK", "0")) == 0:
        arguments.out.write_text(json.dumps(result))
    if distributed:
        time.sleep(0.1)  # or gloo may hang: docs/launchers.md
        torch.distributed.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, value in (("layers", 6), ("width", 128), ("heads", 4), ("batch", 2), ("length", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--switch", type=int, default=0, help="steps a block, recording off and on in turn")
    parser.add_argument(
        "--profile-folder", type=Path, help="run under torch.profiler, export each cycle there"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _step_function(arguments: argparse.Namespace, distributed: bool) -> Callable[[], float]:
    model: nn.Module = GPT(
        vocabulary=arguments.vocabulary,
        layers=arguments.layers,
        width=arguments.width,
        heads=arguments.heads,
        length=arguments.length,
    )
    if distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)

    def step() -> float:
        shape = (arguments.batch, arguments.length)
        tokens = torch.randint(arguments.vocabulary, shape, generator=generator)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def _timed(
    step: Callable[[], float], end_of_step: Callable[[], None], steps: int, switch: int
) -> dict[str, object]:
    """Times of ``steps`` steps; with ``switch``, the recording is turned over after every so many."""
    tap = loaded_tap() if switch else None
    records = 0
    times: list[float] = []
    cpu_times: list[float] = []
    flags: list[bool] = []
    for number in range(steps):
        on = tap is None or is_on(number // switch)
        if tap is not None and number % switch == 0:
            tap.rkm_enable(TAP_ALL, int(on))
        records_before = _records(tap)
        before, cpu_before = time.perf_counter(), time.process_time()
        step()
        end_of_step()
        times.append(time.perf_counter() - before)
        cpu_times.append(time.process_time() - cpu_before)
        records += _records(tap) - records_before
        flags.append(on)
    return {"steps_s": times, "cpu_s": cpu_times, "on": flags, "records_a_step": records / max(1, sum(flags))}


def is_on(block: int) -> bool:
    """Off, on, on, off, ...: a drift of the machine weighs on both alike."""
    return block % 4 in (1, 2)


@contextlib.contextmanager
def profiler_cycles(folder: Path | None) -> Iterator[Callable[[], None]]:
    """What to call at the end of each step: torch.profiler's step, or nothing."""
    if folder is None:
        yield lambda: None
        return
    from torch import profiler

    def export(profile: profiler.profile) -> None:
        profile.export_chrome_trace(str(folder / f"cycle-{profile.step_num}.json"))

    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        profile_memory=True,
        with_stack=True,
        schedule=profiler.schedule(wait=0, warmup=0, active=PROFILER_CYCLE_STEPS),
        on_trace_ready=export,
    ) as profile:
        yield profile.step


def _records(tap: ctypes.CDLL | None) -> int:
    """Records that the tap has numbered; few while recording is off."""
    return int(tap.rkm_stat(0)) if tap is not None else 0


def loaded_tap() -> ctypes.CDLL:
    """The tap that is in this process already, by its C interface."""
    words = Path("/proc/self/maps").read_text().split()
    for path in {word for word in words if Path(word).name.startswith("tap-")}:
        tap = ctypes.CDLL(path)
        tap.rkm_stat.restype = ctypes.c_uint64
        return tap
    raise SystemExit("Error: no tap is loaded in this process\nTry: start it with python -m rankmem_agent")


def _resident_bytes_besides_spool() -> int:
    """Resident bytes of this process without the mappings of a spool's files."""
    total = spool = 0
    is_spool = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = words[-1]
            is_spool = Path(name).name.startswith(("segment-", "control", "strings")) and "/" in name
        elif words[0] == "Rss:":
            size = int(words[1]) * 1024
            total += size
            spool += size if is_spool else 0
    return total - spool


if __name__ == "__main__":
    main()
