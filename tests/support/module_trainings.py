"""Trainings in which hooks and frames both name the module of each call; a script.

``python module_trainings.py TRAINING SPOOL_FOLDER STEPS``: the real tap and hooks, no preload, no shipper.
The two name modules on their own: each has its ``Modules``, so that the order in which they meet them may
differ.
Trainings of category_models and trained_models, and those here: what is unusual about calls of modules.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import category_models
import category_models_more
import category_models_ranks
import trained_models
from hooked import hook
from rankmem_agent.hooks.module_frames import ModuleReader
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.recorder import ModuleSlot
from rankmem_agent.spool.layout import Category, Kind
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Tap, What

Step = Callable[[], None]
BUDGET_BYTES = 1 << 30


class Compared:
    """The tap for the hooks: what they say of the phase is kept beside what the tap finds."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def intern(self, text: str) -> int:
        return self._tap.intern(text)

    def record(self, kind: Kind, **fields: int) -> None:
        """MODULE records are the others' part."""

    def tag(self, category: Category, *rest: Any) -> None:
        """Nothing is tagged by hooks of modules."""

    def set_module(self, module_string_id: int) -> None:
        self._tap.set_module(module_string_id)

    def module_slot(self) -> ModuleSlot:
        return self._tap.module_slot()

    def module_reader(self) -> ModuleReader | None:
        return None

    def set_phase(self, phase: int) -> None:
        self._tap.compare_phase(phase)

    def set_step(self, step: int, *, by_call: bool = False) -> None:
        raise AssertionError("steps are told to the tap itself")


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def supervised(model: nn.Module, width: int = 32) -> Step:
    optimizer = adam(model)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, width)).square().mean().backward()
        optimizer.step()

    return step


class Experts(nn.Module):
    """A few tokens to experts that are chosen by value."""

    def __init__(self, width: int = 32, count: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            rows = (chosen == index).nonzero().squeeze(1)
            out = out.index_add(0, rows, self.experts[index](x[rows]) * top[rows, None])
        return x + out


def sparse_experts() -> Step:
    """Equal modules on one line, chosen by index."""
    return supervised(nn.Sequential(Experts(), Experts()))


def layer_drop() -> Step:
    """One of equal layers is left out now and then."""
    layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(4))
    optimizer = adam(layers)

    def step() -> None:
        hidden, skipped = torch.randn(2, 6, 32), random.randrange(4)
        for index, layer in enumerate(layers):
            hidden = hidden if index == skipped else layer(hidden)
        optimizer.zero_grad()
        hidden.square().mean().backward()
        optimizer.step()

    return step


def cells() -> Step:
    """A cell called as often as the sequence is long."""
    embed, cell, head = nn.Embedding(50, 16), nn.GRUCell(16, 32), nn.Linear(32, 5)
    optimizer = adam(nn.ModuleList([embed, cell, head]))

    def step() -> None:
        hidden, tokens = torch.zeros(4, 32), embed(torch.randint(50, (4, random.randint(3, 9))))
        for at in range(tokens.shape[1]):
            hidden = cell(tokens[:, at], hidden)
        optimizer.zero_grad()
        functional.cross_entropy(head(hidden), torch.randint(5, (4,))).backward()
        optimizer.step()

    return step


def inference() -> Step:
    """Batches of one under no_grad and inference_mode."""
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))

    def step() -> None:
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                torch.distributions.Categorical(logits=policy(torch.randn(1, 8))).sample()

    return step


def gradients_within() -> Step:
    """torch.autograd.grad in a forward, as physics-informed nets have it."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.requires_grad_(True)
            value = self.net(x)
            (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            return value + slope.square().sum(1, keepdim=True)

    return supervised(Field())


def lbfgs() -> Step:
    """Many forwards and backwards in one step."""
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    data = torch.randn(16, 16)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)  # type: ignore[func-returns-value]


def scripted() -> Step:
    """A ScriptModule, called from Python and from a module."""
    inner = torch.jit.script(nn.Sequential(nn.Linear(32, 32), nn.ReLU()))
    return supervised(nn.Sequential(nn.Linear(32, 32), inner, nn.Linear(32, 4)))


def traced() -> Step:
    """A module that torch.jit.trace made."""
    inner = torch.jit.trace(nn.Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(2, 32))
    return supervised(nn.Sequential(nn.Linear(32, 32), inner, nn.Linear(32, 4)))


def by_hand() -> Step:
    """``module.forward(x)``: no call of a module."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first.forward(x))

    return supervised(Outer())


def compiled() -> Step:
    """A compiled model with a break in its graph."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x.relu())

    return supervised(nn.Sequential(torch.compile(Broken(), backend="aot_eager"), nn.Tanh()))


def compiled_parts() -> Step:
    """Layers compiled one by one, within a model that is not."""
    model = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 4))
    model[1] = torch.compile(model[1], backend="aot_eager", fullgraph=True)
    return supervised(model)


def compiled_in_place() -> Step:
    """``module.compile()``: its call runs, its hooks do not."""
    model = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 4))
    model.compile(backend="aot_eager", fullgraph=True)
    return supervised(model)


def functional_call() -> Step:
    """torch.func.functional_call with parameters of one's own."""
    model = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 4))
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        torch.func.functional_call(model, weights, (torch.randn(8, 32),)).square().mean().backward()
        optimizer.step()

    return step


def raising() -> Step:
    """A forward that raises and is caught, within a module and outside of any."""

    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.linear(x.repeat(1, 2))
            except RuntimeError:
                return self.linear(x) * 2

    train, wrong = supervised(nn.Sequential(Careless(), nn.Linear(16, 4))), nn.Linear(3, 3)

    def step() -> None:
        train()
        try:
            wrong(torch.randn(2, 4) + 1)
        except RuntimeError:
            torch.randn(7) + 1

    return step


def generators() -> Step:
    """Batches and layers out of generators; a generator that outlives the call that made it."""

    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

        def steps(self, x: torch.Tensor) -> Any:
            for layer in self.layers:
                x = layer(x) + 1
                yield x

        def forward(self, x: torch.Tensor) -> Any:
            return self.steps(x * 2)

    model = Lazy()
    optimizer = adam(model)

    def step() -> None:
        optimizer.zero_grad()
        sum(each.square().mean() * 2 for each in model(torch.randn(4, 32))).backward()
        optimizer.step()

    return step


def made_and_gone() -> Step:
    """Modules made within a forward and gone after it, others at their addresses."""

    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for kind in (nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU, nn.Hardtanh):
                x = kind()(x) + 1
            return nn.Sequential(nn.Softmax(1), nn.Sequential(nn.ReLU(), nn.Tanh()))(self.linear(x))

    return supervised(Making())


def replaced() -> Step:
    """A part is replaced in each step; a copy of the whole is called as well."""
    import copy

    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    train = supervised(model)

    def step() -> None:
        model[1] = random.choice((nn.Tanh, nn.Sigmoid, nn.ReLU))()
        train()
        copy.deepcopy(model)(torch.randn(2, 32))

    return step


def parts_first() -> Step:
    """A copy's parts are called before their whole, which then has other names for them."""
    import copy

    model = copy.deepcopy(nn.Sequential(nn.Sequential(nn.Linear(32, 32), nn.Tanh()), nn.Linear(32, 4)))
    train, steps = supervised(model), iter(range(1000))

    def step() -> None:
        if next(steps) == 0:
            model[0](torch.randn(2, 32))
        train()

    return step


def loss_modules() -> Step:
    """Metrics and losses that are modules of their own, called under no_grad too."""
    model, loss = nn.Linear(32, 5), nn.CrossEntropyLoss()
    optimizer, dropout = adam(model), nn.Dropout(0.5)

    def step() -> None:
        optimizer.zero_grad()
        loss(dropout(model(torch.randn(8, 32))), torch.randint(5, (8,))).backward()
        optimizer.step()
        with torch.no_grad():
            model.eval()(torch.randn(8, 32)).argmax(1).float().mean().item()
            model.train()

    return step


def hooked() -> Step:
    """The user's own hooks of modules and of gradients, which call modules."""
    aside = nn.Linear(48, 48)
    model = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 4))
    model[0].register_forward_hook(lambda module, args, output: aside(output) + 1)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    model[1].register_full_backward_hook(lambda module, given, taken: (given[0] + 1,))
    return supervised(model)


def custom_backward() -> Step:
    """A Function of the user's whose backward calls a module."""
    inner = nn.Linear(48, 48)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return inner(x) * 2

        @staticmethod
        def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            with torch.enable_grad():
                return inner(given) + 1

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Twice.apply(x)  # type: ignore[no-any-return]

    return supervised(nn.Sequential(nn.Linear(32, 48), Custom(), nn.Linear(48, 4)))


def deep() -> Step:
    """A module that calls itself a hundred deep through plain functions, and one whose layers nest."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def down(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            return self.down(x, depth - 1) if depth else self.linear(x + 1) * 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(x, 300) + 1

    nested: nn.Module = nn.Linear(32, 32)
    for _ in range(40):
        nested = nn.Sequential(nested)
    return supervised(nn.Sequential(Deep(), nested))


def step_within() -> Step:
    """A model that trains itself in its forward, as manual optimization under DDP does."""

    class Manual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

    model = Manual()
    optimizer = torch.optim.Adam(model.net.parameters(), foreach=False)
    return lambda: model(torch.randn(8, 32)) and None


def hugging_face() -> Step:
    """GPT-2 of transformers, trained and generating; plain layers where that is not installed."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        return category_models.MODELS["gpt"]()
    sizes = {"vocab_size": 200, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **tokens))
    optimizer = adam(model)

    def step() -> None:
        data = torch.randint(1, 200, (2, 16))
        optimizer.zero_grad()
        model(input_ids=data, labels=data).loss.backward()
        optimizer.step()
        model.generate(data[:, :4], max_new_tokens=4, do_sample=True, attention_mask=torch.ones(2, 4))

    return step


HERE: tuple[Callable[[], Step], ...] = (
    sparse_experts, layer_drop, cells, inference, gradients_within, lbfgs, scripted, traced,
    by_hand, compiled, compiled_parts, compiled_in_place, functional_call, raising, generators, made_and_gone,
    replaced, parts_first, loss_modules, hooked, custom_backward, deep, step_within, hugging_face,
)  # fmt: skip
TRAININGS: dict[str, Callable[[], Step]] = {
    **category_models_more.MODELS,
    **category_models_ranks.MODELS,
    **{f"trained_{name}": model for name, model in trained_models.MODELS.items()},
    **category_models.MODELS,
    **{training.__name__: training for training in HERE},
}


def is_compiling() -> bool:
    """Whether something traces: no question is answered then."""
    return torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing()


def main(name: str, folder: Path, steps: int) -> None:
    """Trains, with every call's module and phase said twice."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    tap = Tap(build_tap())
    tap.open(folder, BUDGET_BYTES)
    tap.attach_cpu()
    tap.attach_calls()
    tap.enable(What.CPU_EVENTS | What.CALLS | What.STACKS | What.COMPARE_MODULES)
    hooked = hook(tap, is_compiling)
    Modules(Compared(tap), is_compiling, hooked.guard, lambda: hooked.steps.phase_outside).install()
    training = TRAININGS[name]()
    for _ in range(steps):
        training()
    tap.stop_stacks()
    tap.close()
    if hooked.guard.failures:
        raise AssertionError("a hook failed")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
