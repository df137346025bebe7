"""Programs of small operators that the benchmarks time: recording weighs most where a step is short.

Stage: the user's script. It knows nothing of rankmem and runs the same with and without it. Writes a JSON
object to ``--out``: wall and CPU time of a step and its own thread's, the mean over all timed, a profiler's
exports included.

- ``mlp``: training of four layers of 64 with Adam, some 0.6 ms a step.
- ``rl``: twenty times batch-1 inference and a sample of what it gives; no optimizer.
- ``lstm``: an LSTMCell over sixteen steps, and backward; no optimizer.
- ``generate``: sixteen tokens one by one, with a KV cache that grows; inference.
- ``deep``: training of 24 transformer layers of 64 with AdamW.
- ``gpt``: training of four transformer layers of 256 with AdamW.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import nn
from train_gpt import is_on, loaded_tap, profiler_cycles

Step = Callable[[], object]
WARM_UP_S: Final = 1.0
PROMPT_TOKENS: Final = 16
NEW_TOKENS: Final = 16


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Step:
    """A net's training on one batch."""

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return step


def mlp() -> Step:
    """The MLP's step."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    net, x = nn.Sequential(*layers), torch.randn(32, 64)
    return trained(net, torch.optim.Adam(net.parameters()), x)


def rl() -> Step:
    """A policy's rollout."""
    net, x = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)), torch.randn(1, 8)

    @torch.no_grad()
    def step() -> None:
        for _ in range(20):
            torch.distributions.Categorical(logits=net(x)).sample()

    return step


def lstm() -> Step:
    """The cell's loop."""
    cell, x = nn.LSTMCell(32, 64), torch.randn(8, 32)

    def step() -> None:
        h = c = torch.zeros(8, 64)
        for _ in range(16):
            h, c = cell(x, (h, c))
        h.sum().backward()  # type: ignore[no-untyped-call]
        cell.zero_grad()

    return step


class Decoder(nn.Module):
    """A layer that attends to all tokens before, whose keys and values it keeps."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.cache: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[1, tokens, width]`` in and out."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        if self.cache:
            k, v = torch.cat([self.cache[0], k], 2), torch.cat([self.cache[1], v], 2)
        self.cache = [k, v]
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_mlp(x))  # type: ignore[no-any-return]


def generate() -> Step:
    """Greedy decoding."""
    tokens, head = nn.Embedding(200, 64), nn.Linear(64, 200)
    layers = nn.Sequential(*(Decoder(64, 4) for _ in range(2)))

    @torch.no_grad()
    def step() -> None:
        for layer in layers:
            layer.cache = []
        last = torch.randint(200, (1, PROMPT_TOKENS))
        for _ in range(NEW_TOKENS):
            last = head(layers(tokens(last)))[:, -1:].argmax(-1)

    return step


def encoder(width: int, tokens: int, batch: int, layers: int) -> Step:
    """Training of transformer layers."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
    net, x = nn.TransformerEncoder(layer, layers), torch.randn(batch, tokens, width)
    return trained(net, torch.optim.AdamW(net.parameters()), x)


def deep() -> Step:
    """Many small layers."""
    return encoder(64, tokens=32, batch=2, layers=24)


def gpt() -> Step:
    """A few larger ones."""
    return encoder(256, tokens=64, batch=4, layers=4)


def ending(step: Step) -> Step:
    """The same, with the end of each step told to whoever records it."""
    from rankmem_agent import step as step_ends

    def step_with_end() -> None:
        step()
        step_ends()

    return step_with_end


def switched(step: Step, steps: int, bits: int, at_once: int) -> dict[str, object]:
    """CPU times of this thread a step, and with what, in chunks of so many steps; the first steps of each are
    left out."""
    tap = loaded_tap()
    times: list[float] = []
    flags: list[bool] = []
    for chunk in range(steps // at_once):
        on = is_on(chunk)
        tap.rkm_enable(bits, int(on))
        for _ in range(at_once // 4):
            step()
        before = time.thread_time()
        for _ in range(at_once):
            step()
        times.append((time.thread_time() - before) / at_once)
        flags.append(on)
    return {"thread_s": times, "on": flags}


PROGRAMS: Final[dict[str, Callable[[], Step]]] = {
    each.__name__: each for each in (mlp, rl, lstm, generate, deep, gpt)
}


def main() -> None:
    """Runs a program, and writes what its step took."""
    arguments = _arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.observer is not None:
        ctypes.CDLL(str(arguments.observer)).observe()
    step = PROGRAMS[arguments.program]()
    if arguments.ends_steps:
        step = ending(step)
    until = time.monotonic() + WARM_UP_S
    while time.monotonic() < until:
        step()
    if arguments.switch:
        found = switched(step, arguments.steps, arguments.switch, arguments.chunk_steps)
        arguments.out.write_text(json.dumps(found))
        return
    with profiler_cycles(arguments.profile_folder) as end_of_step:
        wall_s, cpu_s, thread_s = time.perf_counter(), time.process_time(), time.thread_time()
        for _ in range(arguments.steps):
            step()
            end_of_step()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        thread_s = time.thread_time() - thread_s
    taken = {"wall_s": wall_s, "cpu_s": cpu_s, "thread_s": thread_s}
    arguments.out.write_text(json.dumps({name: each / arguments.steps for name, each in taken.items()}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--ends-steps", action="store_true", help="say where a step ends, where no optimizer does"
    )
    parser.add_argument("--switch", type=int, default=0, help="bits of the tap, turned off and on in turn")
    parser.add_argument("--chunk-steps", type=int, default=16, help="steps between one switch and the next")
    parser.add_argument("--observer", type=Path, help="a library with an observer of operators, to be added")
    parser.add_argument(
        "--profile-folder", type=Path, help="run under torch.profiler, export each cycle there"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
