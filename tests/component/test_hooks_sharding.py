"""What is told of FSDP2's groups and of reentrant checkpoints, and that a changed torch does no harm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import checkpoint

from hook_recorder import Recorded
from rankmem_agent.hooks import sharding
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.sharding import Sharding
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.spool.layout import Category

PARAMETER, GRADIENT = Category.PARAMETER, Category.GRADIENT


class Group:
    """A parameter group shaped like FSDP2's."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self.fsdp_params = [SimpleNamespace(_unsharded_param=parameter, sharded_param=torch.zeros(2))]
        self.comm_ctx = SimpleNamespace(reduce_scatter_states=[])

    def _to_unsharded(self) -> str:
        return "gathered"

    def post_backward(self, *unused: Any) -> str:
        sent = SimpleNamespace(reduce_scatter_input=self.fsdp_params[0]._unsharded_param.grad)
        self.comm_ctx.reduce_scatter_states.append(sent)
        self.fsdp_params[0]._unsharded_param.grad = None
        return "reduced"


class Changed:
    """One of a torch to come."""

    def _to_unsharded(self) -> str:
        return "gathered"

    def post_backward(self) -> None: ...


@pytest.fixture
def fsdp(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("fsdp")
    monkeypatch.setitem(sys.modules, sharding._FSDP, module)
    return module


@pytest.fixture(autouse=True)
def genuine_checkpoint() -> Iterator[None]:
    backward = checkpoint.CheckpointFunction.__dict__["backward"]
    yield
    checkpoint.CheckpointFunction.backward = backward


def looked() -> tuple[Recorded, Sharding, Guard]:
    recorded, guard = Recorded(), Guard(0)
    made = Sharding(recorded, torch.compiler.is_compiling, guard, Steps(recorded))
    made.look()
    made.look()
    return recorded, made, guard


def told(recorded: Recorded) -> list[tuple[Category, int]]:
    return [(category, address) for category, address, _ in recorded.tags()]


def test_a_gathered_parameter_and_its_gradient_are_told_once(fsdp: ModuleType) -> None:
    fsdp.FSDPParamGroup = type("FSDPParamGroup", (Group,), dict(vars(Group)))
    recorded, _, guard = looked()
    parameter = torch.ones(4, requires_grad=True)
    parameter.sum().backward()
    assert parameter.grad is not None
    gradient = parameter.grad.data_ptr()
    group = fsdp.FSDPParamGroup(parameter)
    assert (group._to_unsharded(), group.post_backward()) == ("gathered", "reduced")
    assert told(recorded) == [(PARAMETER, parameter.data_ptr()), (GRADIENT, gradient), (GRADIENT, gradient)]
    assert guard.failures == 0


def test_a_torch_whose_groups_are_others_is_left_alone_and_said(
    fsdp: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    fsdp.FSDPParamGroup = type("FSDPParamGroup", (Changed,), dict(vars(Changed)))
    recorded, _, guard = looked()
    for _ in range(2):
        assert fsdp.FSDPParamGroup()._to_unsharded() == "gathered"
    assert (recorded.records, guard.failures) == ([], 1)
    assert "categories of sharded parameters are no longer recorded" in capsys.readouterr().err


def test_what_a_reentrant_checkpoint_hands_on_is_a_gradient() -> None:
    recorded, hooks, _ = looked()
    data = torch.ones(3, 3, requires_grad=True)
    for is_on in (True, False):
        if not is_on:
            hooks.stop()
        seen: list[int] = []
        hidden = data * 2
        hidden.register_hook(lambda gradient, seen=seen: seen.append(gradient.data_ptr()))
        checkpoint.checkpoint(torch.sin, hidden, use_reentrant=True).sum().backward()
        assert told(recorded) == ([(GRADIENT, seen[0])] if is_on else told(recorded)[:1])
