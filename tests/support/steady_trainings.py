"""Trainings in which each block is compared with those of steps before, and fully observed as well; a script.

``python steady_trainings.py TRAINING SPOOL_FOLDER STEPS [DEVICE [AUDITS_EVERY [LIVES_MS]]]``: the real tap
and hooks, no preload, no shipper; with AUDITS_EVERY calls are not observed in steps that are known; with
LIVES_MS the process is killed so long after its first step. Those of
module_trainings, and those here: what a comparison could take for the same.
"""

from __future__ import annotations

import contextlib
import queue
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import module_trainings
import varied_trainings
from hooked import hook
from module_trainings import Step, adam, supervised
from rankmem_agent.hooks import user_api as told
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Stat, Tap, What

BUDGET_BYTES = 1 << 30
ASKS_EVERY = 20
RARE = 0.3
"""How often a step takes the other way."""


class Ways(nn.Module):
    """Two ways through the middle, of equal sizes."""

    def __init__(self, middle: Callable[[torch.Tensor, bool], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(32, 32), nn.Linear(32, 4), nn.Dropout(0.1)
        self.twins = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As above."""
        return self.last(self.middle(self.drop(self.first(x)), random.random() < RARE))  # type: ignore[no-any-return]


def by_line() -> Step:
    """Another operator on another line."""

    def middle(h: torch.Tensor, is_rare: bool) -> torch.Tensor:
        if is_rare:
            return torch.tanh(h)
        return torch.sigmoid(h)

    return supervised(Ways(middle))


def by_function() -> Step:
    """Another operator in the same instruction."""
    return supervised(Ways(lambda h, is_rare: (torch.tanh if is_rare else torch.sigmoid)(h)))


def in_place() -> Step:
    """Another operator that allocates nothing in forward."""
    return supervised(Ways(lambda h, is_rare: h.tanh_() if is_rare else h.sigmoid_()))


def by_module() -> Step:
    """Another module of the same class, called in the same instruction."""
    model = Ways(lambda h, is_rare: model.twins[int(is_rare)](h))
    return supervised(model)


def without_gradient() -> Step:
    """Another operator in the same instruction, of which autograd knows nothing: no block shows it."""

    def middle(h: torch.Tensor, is_rare: bool) -> torch.Tensor:
        with torch.no_grad():
            gate = (torch.tanh if is_rare else torch.sigmoid)(h)
        return h * gate

    return supervised(Ways(middle))


def summed_gradients() -> Step:
    """The same blocks in backward, in which gradients are summed up now and then."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = adam(model)

    def step() -> None:
        is_rare = random.random() < RARE
        if not is_rare:
            optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
        if is_rare:
            optimizer.zero_grad()

    return step


def freed_early() -> Step:
    """The same blocks, one of which is freed before the forward now and then."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = adam(model)

    def step() -> None:
        optimizer.zero_grad()
        x = torch.randn(16, 32)
        noise = x * 2
        if random.random() < RARE:
            del noise
        model(x).square().mean().backward()
        optimizer.step()

    return step


def lengths() -> Step:
    """Batch and length vary from step to step."""
    embed, head = nn.Embedding(50, 16), nn.Linear(16, 50)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    optimizer = adam(nn.ModuleList([embed, layer, head]))

    def step() -> None:
        tokens = torch.randint(50, (random.randint(2, 6), random.randint(4, 24)))
        optimizer.zero_grad()
        functional.cross_entropy(head(layer(embed(tokens))).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return step


def evaluated() -> Step:
    """Every fifth step ends with an evaluation."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 4))
    optimizer, steps = adam(model), iter(range(10_000))

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 3, 16, 16)).square().mean().backward()
        optimizer.step()
        if next(steps) % 5 == 4:
            model.eval()
            with torch.no_grad():
                model(torch.randn(4, 3, 16, 16)).argmax(1).sum().item()
            model.train()

    return step


def loader_thread() -> Step:
    """Batches are made in another thread."""
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)

    def load() -> None:
        while True:
            batches.put(torch.stack([torch.randn(32) for _ in range(8)]))

    model = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 4))
    optimizer = adam(model)
    threading.Thread(target=load, daemon=True).start()

    def step() -> None:
        optimizer.zero_grad()
        model(batches.get()).square().mean().backward()
        optimizer.step()

    return step


def loops() -> Step:
    """Twenty inferences a step, ended by the user."""
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))

    def step() -> None:
        with torch.no_grad():
            for _ in range(20):
                torch.distributions.Categorical(logits=policy(torch.randn(1, 8))).sample()
        told.step()

    return step


class Asking(nn.Module):
    """Asks for more memory than there is, now and then, and goes on without."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(32, 32), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As above."""
        self.calls += 1
        if self.calls % ASKS_EVERY == 0:
            with contextlib.suppress(RuntimeError):
                torch.empty(1 << 62, dtype=torch.uint8)
        return self.inner(x)  # type: ignore[no-any-return]


def out_of_memory() -> Step:
    """A step in which memory was refused."""
    return supervised(nn.Sequential(nn.Linear(32, 32), Asking(), nn.Linear(32, 4)))


HERE: tuple[Callable[[], Step], ...] = (
    by_line, by_function, in_place, by_module, without_gradient, summed_gradients, freed_early, lengths,
    evaluated, loader_thread, loops, out_of_memory,
)  # fmt: skip
# torch 2.13 refuses compiled_in_place where no module has a hook, recorded or not.
TRAININGS: dict[str, Callable[[], Step]] = {
    **{name: made for name, made in module_trainings.TRAININGS.items() if name != "compiled_in_place"},
    **varied_trainings.TRAININGS,
    **{training.__name__: training for training in HERE},
}


def on_device(device: str) -> None:
    """Has trainings use this device; an optimizer's counter stays on the CPU, where users have it."""
    torch.set_default_device(device)
    if device != "cpu":
        register_optimizer_step_pre_hook(lambda *_: torch.set_default_device("cpu"))
        register_optimizer_step_post_hook(lambda *_: torch.set_default_device(device))


def main(
    name: str, folder: Path, steps: int, device: str = "cpu", audits_every: int = 0, lives_ms: int = 0
) -> None:
    """Trains on the device, observed and compared."""
    torch.set_num_threads(1)
    on_device(device)
    torch.manual_seed(0)
    random.seed(0)
    tap = Tap(build_tap(with_evidence=True))
    tap.open(folder, BUDGET_BYTES)
    tap.attach_cpu()
    if device != "cpu":
        torch.cuda.init()
        tap.attach_cuda()
    tap.attach_calls()
    is_compiling = module_trainings.is_compiling
    hooked = hook(tap, is_compiling)
    told.connect(tap, hooked.steps, is_compiling)
    tap.enable(What.CPU_EVENTS | What.CALLS | What.STACKS | What.EVIDENCE)
    if audits_every:
        assert tap.choose_steady(audits_every)
    else:
        tap.enable(What.SHOW_ALL)
    training = TRAININGS[name]()
    training()
    if lives_ms:
        signal.setitimer(signal.ITIMER_REAL, lives_ms / 1000)  # nobody handles the signal
    for _ in range(steps - 1):
        training()
    if tap.stat(Stat.FRAMES_MISREAD):
        raise AssertionError("frames gave other keys than read anew")
    tap.stop_stacks()
    tap.close()
    if hooked.guard.failures:
        raise AssertionError("a hook failed")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5], *map(int, sys.argv[5:]))
