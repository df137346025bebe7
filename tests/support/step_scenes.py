"""Optimizers in every state that a step may find, each with the tags that a step must write.

Stage: tests; runs in a process of its own, where the tap records. A scene is a generator: it makes an
optimizer, changes something, and yields what the next step has to tag as parameters beside all gradients.
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.step_hooks import StepHooks
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import Tags
from rankmem_agent.hooks.weights import Weights
from rankmem_agent.tap.library import Stat, Tap

Step = tuple[torch.optim.Optimizer, list[Any]]
"""An optimizer that is to step, and the parameters that this step has to tag."""


def weights_of(*sizes: int) -> list[nn.Parameter]:
    """Parameters with gradients."""
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    for each in parameters:
        each.grad = torch.randn_like(each)
    return parameters


def steady() -> Iterator[Step]:
    """The first step tags the parameters, the next ones gradients alone."""
    own = weights_of(10, 20, 30)
    optimizer = torch.optim.Adam(own)
    yield optimizer, own
    for _ in range(3):
        yield optimizer, []


def moved() -> Iterator[Step]:
    """.data, set_ and a resized storage."""
    own = weights_of(10, 20, 30)
    optimizer = torch.optim.SGD(own, lr=0.1)
    yield optimizer, own
    own[1].data = torch.randn(20)
    yield optimizer, [own[1]]
    with torch.no_grad():
        own[2].set_(torch.randn(30))
    yield optimizer, [own[2]]
    yield optimizer, []


def converted() -> Iterator[Step]:
    """To another type and back, with and without torch's swapping of whole tensors."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    yield optimizer, list(net.parameters())
    for swaps, dtype in ((False, torch.float64), (True, torch.float32), (False, torch.float64)):
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        net.to(dtype)
        yield optimizer, list(net.parameters())
        yield optimizer, []
    torch.__future__.set_swap_module_params_on_conversion(False)


def replaced() -> Iterator[Step]:
    """Another parameter in the place of one whose memory is gone, most likely at the same address.

    The object of the one before is kept: without the tap nothing shows that another has taken its place too.
    """
    optimizer = torch.optim.SGD(weights_of(1000), lr=0.1)
    parameters = optimizer.param_groups[0]["params"]
    yield optimizer, parameters
    for _ in range(3):
        before = parameters[0]
        before.data = torch.empty(0)
        before.grad = None
        parameters[0] = weights_of(1000)[0]
        yield optimizer, parameters
        del before


def added() -> Iterator[Step]:
    """One more group: the plan is rebuilt."""
    first, second = weights_of(10, 20), weights_of(30)
    optimizer = torch.optim.AdamW(first)
    yield optimizer, first
    optimizer.add_param_group({"params": second, "lr": 0.5})
    yield optimizer, first + second
    yield optimizer, []


def without_gradients() -> Iterator[Step]:
    """Gradients that disappear and return."""
    own = weights_of(10, 20)
    optimizer = torch.optim.SGD(own, lr=0.1)
    own[0].grad = None
    yield optimizer, own
    optimizer.zero_grad()
    yield optimizer, []
    own[1].grad = torch.ones(20)
    yield optimizer, []


def sparse() -> Iterator[Step]:
    """A dense gradient that becomes sparse and dense again, beside one that stays dense."""
    table, other = nn.Parameter(torch.randn(10, 4)), weights_of(5)[0]
    optimizer = torch.optim.SGD([table, other], lr=0.1)
    tokens = torch.tensor([1, 3])
    for is_sparse, expected in ((False, [table, other]), (True, []), (False, [])):
        table.grad = None
        nn.functional.embedding(tokens, table, sparse=is_sparse).sum().backward()
        yield optimizer, expected


def odd() -> Iterator[Step]:
    """Empty parameters, views into one storage, a lazy module, groups that are no lists."""
    flat = torch.randn(100)
    views = [nn.Parameter(flat[:40]), nn.Parameter(flat[40:].view(6, 10)), nn.Parameter(torch.zeros(0))]
    optimizer = torch.optim.SGD(views, lr=0.1)
    yield optimizer, views[:2]
    yield optimizer, []
    lazy = nn.LazyLinear(3)
    optimizer = torch.optim.SGD([*lazy.parameters(), *views[:1]], lr=0.1)
    yield optimizer, views[:1]
    lazy(torch.ones(2, 5)).sum().backward()
    yield optimizer, list(lazy.parameters())
    yield optimizer, []
    group = optimizer.param_groups[0]
    group["params"] = tuple(group["params"])
    yield optimizer, []
    yield optimizer, []


def copied() -> Iterator[Step]:
    """Optimizers that are copied, pickled and loaded."""
    own = weights_of(10, 20)
    optimizer = torch.optim.Adam(own)
    yield optimizer, own
    optimizer.load_state_dict(optimizer.state_dict())
    yield optimizer, []
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        yield other, other.param_groups[0]["params"]
        yield other, []
    yield optimizer, []


def inside_another() -> Iterator[Step]:
    """An optimizer whose step runs another one's: its tags are counted too."""
    own = weights_of(10)
    inner = torch.optim.SGD(own, lr=0.1)

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            inner.step()

    optimizer = Outer(own, lr=0.1)
    yield optimizer, own * 2
    yield optimizer, []


def compiled_state() -> Iterator[Step]:
    """The other ways that torch has to run a step."""
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        own = weights_of(10, 20)
        optimizer = torch.optim.AdamW(own, **options)
        yield optimizer, own
        yield optimizer, []


class Still(torch.optim.SGD):
    """Touches nothing in its step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""


def freed() -> Iterator[Step]:
    """A view of a storage that is freed and comes back, as sharded trainings do it."""
    flat = torch.randn(100)
    own = nn.Parameter(flat[40:])
    own.grad = torch.ones(60)
    optimizer = Still([own], lr=0.1)
    yield optimizer, [own]
    yield optimizer, []
    flat.untyped_storage().resize_(0)
    yield optimizer, []
    flat.untyped_storage().resize_(400)
    yield optimizer, [own]
    yield optimizer, []


SCENES: list[Callable[[], Iterator[Step]]] = [
    steady, moved, converted, replaced, added, without_gradients, sparse, odd, copied, inside_another,
    compiled_state, freed,
]  # fmt: skip


TOLD_AGAIN = (odd.__name__,)
"""Scenes in which a plan may be made anew, and so tag all its parameters again, where nothing asks for it."""


class WithoutCalls:
    """The tap as a recorder that leaves steps to Python."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tap, name)

    def step_calls(self) -> None:
        """None."""


def hooked(recorder: Any, guard: Guard) -> StepHooks:
    """The hooks, installed without those of modules' calls."""
    is_compiling = torch.compiler.is_compiling
    steps, tags = Steps(recorder), Tags(recorder, is_compiling, guard)
    weights = Weights(recorder, _NoNames(), lambda: steps.number, is_compiling, guard)  # type: ignore[arg-type]
    hooks = StepHooks(recorder, is_compiling, guard, steps, tags, weights)
    hooks.install()
    return hooks


class _NoNames:
    def roots(self) -> list[Any]:
        return []


def run(tap: Tap, *, natively: bool) -> list[dict[str, Any]]:
    """Plays all scenes; for each step where its records lie and what is expected among them."""
    guard = Guard(0)
    hooked(tap if natively else WithoutCalls(tap), guard)
    seen = []
    for scene in SCENES:
        for optimizer, expected in scene():
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
            times = 2 if scene is inside_another else 1
            told = {
                "scene": scene.__name__,
                "parameters": sorted(each.data_ptr() for each in expected),
                "may_tell_more": scene.__name__ in TOLD_AGAIN,
                "gradients": sorted(map(_address, gradients)) * times,
                "first": tap.stat(Stat.NEXT_SEQ),
            }
            optimizer.step()
            told["last"] = tap.stat(Stat.NEXT_SEQ)
            told["state"] = sorted(
                value.data_ptr()
                for values in optimizer.state.values()
                for value in values.values()
                if value is not None and value.numel()
            )
            seen.append(told)
        gc.collect()
    if guard.failures:
        raise AssertionError("a hook failed")
    return seen


def _address(gradient: torch.Tensor | None) -> int:
    if gradient is None:
        return 0
    return gradient._values().data_ptr() if gradient.is_sparse else gradient.data_ptr()
