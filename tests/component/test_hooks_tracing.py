"""Where a program is traced or transformed, the hooks keep silent, and make up for it afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode

from hook_recorder import Recorded
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.tags import Tags
from rankmem_agent.hooks.tracing import tracing_of
from rankmem_agent.hooks.weights import Weights
from rankmem_agent.spool.layout import Kind

TRACING = tracing_of(torch)
X = torch.ones(2, 3)


class Model(nn.Module):
    """Asks the two questions where it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.answers: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.answers.append((TRACING.is_traced(), TRACING.hides_tensors()))
        return self.inner(x).relu()


def by_fake_mode(model: Model) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model(mode.from_tensor(X))


WAYS: dict[str, Callable[[Model], object]] = {
    "jit.trace": lambda model: torch.jit.trace(model, X, check_trace=False),
    "fx": lambda model: torch.fx.symbolic_trace(model),
    "make_fx": lambda model: make_fx(model)(X),
    "make_fx, fake": lambda model: make_fx(model, tracing_mode="fake", _allow_non_fake_inputs=True)(X),
    "export": lambda model: torch.export.export(model, (X,), strict=False),
    "fake mode": by_fake_mode,
}


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """With all the hooks that ask tensors."""
    genuine, genuine_export = torch_module._has_any_global_hook, torch.export.export
    made, guard = Recorded(), Guard(0)
    modules = Modules(made, TRACING.by_dynamo, guard, tracing=TRACING)
    weights = Weights(made, modules.names, lambda: 0, TRACING.hides_tensors, guard)
    tags = Tags(made, TRACING.hides_tensors, guard)
    modules.when_named(weights.tree_named)
    modules.when_named(tags.tree)
    handles = [handle for hooks in (modules, weights, tags) for handle in hooks.install()]
    yield made
    for handle in handles:
        handle.remove()
    torch_module._has_any_global_hook = genuine
    torch.export.export = genuine_export
    assert guard.failures == 0


def weights(recorded: Recorded) -> int:
    return sum(kind is Kind.WEIGHT for kind, _ in recorded.records)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_first_seen_by_a_tracer_is_read_at_its_first_real_call(recorded: Recorded, way: str) -> None:
    model = Model()
    before = len(recorded.records)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of TorchScript
        WAYS[way](model)
    assert all(traced for traced, _ in model.answers)
    assert len(recorded.records) == before
    model(X)
    assert model.answers[-1] == (False, False)
    assert weights(recorded) == 2
    assert "inner" in recorded.modules


def test_dynamo_answers_the_questions_itself() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def ask(x: torch.Tensor) -> torch.Tensor:
        answers = (TRACING.by_dynamo(), TRACING.is_traced(), TRACING.hides_tensors())
        return x + sum(answers)

    assert ask(torch.zeros(1)).item() == 3
    assert not TRACING.hides_tensors()


def test_a_trace_of_a_model_that_has_not_run_is_the_same_graph(recorded: Recorded) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        first = torch.jit.trace(model := Model(), X)  # and checks it
        model(X)
        second = torch.jit.trace(model, X)
    assert [str(n.kind()) for n in first.inlined_graph.nodes()] == [
        str(n.kind()) for n in second.inlined_graph.nodes()
    ]
    assert "prim::NumToTensor" not in str(first.graph)


def test_modules_are_named_within_transforms_and_their_weights_read_later(recorded: Recorded) -> None:
    model = Model()
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, values, (x,)).sum()

    torch.func.grad(loss)(parameters, X)
    torch.func.vmap(loss, in_dims=(None, 0))(parameters, X)
    assert model.answers == [(False, True)] * 2
    assert recorded.modules.count("inner") == 2
    assert weights(recorded) == 0
    model(X)
    assert weights(recorded) == 2
    classes = [fields["path"] for kind, fields in recorded.records if kind is Kind.MODULE]
    assert len(classes) == len(set(classes)) == 2


def test_a_mode_of_the_users_own_traces_nothing_and_sees_nothing_of_ours(recorded: Recorded) -> None:
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> torch.Tensor:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    model = Model()
    with Mode():
        model(X)
    assert model.answers == [(False, False)]
    assert seen[:3] == ["aten.t.default", "aten.addmm.default", "aten.relu.default"]
    assert set(seen[3:]) <= {"aten.detach.default"}  # autograd's own, of what relu saves
    assert weights(recorded) == 2
