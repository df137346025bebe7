"""Which parameters are told, when again, and what is said of tied, moved, sharded and frozen ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from hook_recorder import Recorded, step_hooks
from rankmem_agent.hooks import weights as weights_module
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.weights import LOOK_EVERY, Weights
from rankmem_agent.spool.layout import DeviceType, Kind


@dataclass
class Made:
    recorded: Recorded

    def rows(self, since: int = 0) -> list[dict[str, Any]]:
        """The WEIGHT records from ``since`` on: their JSON, sizes and address."""
        told = [fields for kind, fields in self.recorded.records if kind is Kind.WEIGHT]
        return [
            json.loads(self.recorded.strings[f["facts"]])
            | {"bytes": f["size_bytes"], "grad": f["grad_size_bytes"], "address": f["address"]}
            for f in told[since:]
        ]


@pytest.fixture
def made() -> Iterator[Made]:
    genuine = torch_module._has_any_global_hook
    result = Made(Recorded())

    def is_compiling() -> bool:
        return bool(torch.compiler.is_dynamo_compiling())

    modules = Modules(result.recorded, is_compiling, Guard(0))
    steps = Steps(result.recorded)
    weights = Weights(result.recorded, modules.names, lambda: steps.number, is_compiling, Guard(0))
    modules.when_named(weights.tree_named)
    hooks = step_hooks(result.recorded, Guard(0), steps=steps, weights=weights)
    handles = [*modules.install(), *weights.install(), *hooks.install()]
    yield result
    for handle in handles:
        handle.remove()
    torch_module._has_any_global_hook = genuine


def train(
    made: Made, net: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> torch.optim.Optimizer:
    """One step of a net that takes rows of 4."""
    optimizer = optimizer or torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer


def test_each_parameter_is_told_at_the_first_call_and_again_with_its_gradient(made: Made) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False, dtype=torch.float32))
    optimizer = train(made, net)
    for _ in range(3):
        train(made, net, optimizer)
    rows = made.rows()
    expected = [
        {"name": name, "dtype": "float32", "shape": list(p.shape), "bytes": p.nbytes, "address": p.data_ptr()}
        for name, p in net.named_parameters()
    ]
    assert rows == [row | {"grad": 0} for row in expected] + [
        row | {"grad": row["bytes"]} for row in expected
    ]


def test_a_tied_weight_is_one_row_with_the_first_name(made: Made) -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net[1].weight = net[0].weight
    net[2].weight.data = net[0].weight.data  # another Parameter on the same bytes
    net(torch.ones(1, 4))
    assert [row["name"] for row in made.rows()] == ["0.weight"]


def test_what_has_moved_is_told_again_where_it_is(made: Made) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = train(made, net)
    told = len(made.rows())
    net.to(torch.float64).to(torch.float32)
    train(made, net, optimizer)
    again = made.rows(told)
    assert {row["name"]: row["address"] for row in again} == {
        name: p.data_ptr() for name, p in net.named_parameters()
    }
    assert made.rows()[-1]["grad"] > 0


def test_a_parameter_of_the_optimizer_that_moved_alone_is_seen_at_once(made: Made) -> None:
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    optimizer = train(made, net)
    for _ in range(10):
        train(made, net, optimizer)
    told = len(made.rows())
    net[-1].bias.data = torch.zeros(4)
    train(made, net, optimizer)
    assert {row["name"] for row in made.rows(told)} == {"19.bias"}


def test_a_frozen_parameter_that_moved_alone_is_seen_within_64_steps(made: Made) -> None:
    net = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    optimizer = train(made, net)
    for _ in range(10):
        train(made, net, optimizer)
    told = len(made.rows())
    net[0].bias.data = torch.zeros(4)
    for _ in range(LOOK_EVERY):
        train(made, net, optimizer)
    assert {row["name"] for row in made.rows(told)} == {"0.bias"}


def test_a_step_in_which_nothing_changed_asks_no_parameter_and_tells_nothing(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    optimizer = train(made, net)
    for _ in range(5):
        train(made, net, optimizer)
    told, asked = len(made.rows()), []
    genuine = weights_module._place
    monkeypatch.setattr(weights_module, "_place", lambda p: asked.append(1) or genuine(p))
    for _ in range(10):
        train(made, net, optimizer)
    assert (asked, made.rows(told)) == ([], [])


def test_torch_may_swap_a_parameter_that_has_been_told(made: Made) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    optimizer = train(made, net)
    optimizer.zero_grad()
    told = len(made.rows())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    net.to(torch.float32)
    train(made, net, optimizer)
    assert {row["address"] for row in made.rows(told)} == {p.data_ptr() for p in net.parameters()}


def test_a_parameter_registered_later_is_told_before_the_next_step(made: Made) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    optimizer = train(made, net)
    told = len(made.rows())
    net[0].register_parameter("scale", nn.Parameter(torch.ones(1, dtype=torch.bfloat16)))
    train(made, net, optimizer)
    (row,) = made.rows(told)
    assert (row["name"], row["dtype"], row["shape"], row["bytes"]) == ("0.scale", "bfloat16", [1], 2)


def test_frozen_and_unused_parameters_keep_a_gradient_of_0_and_are_not_looked_for_without_end(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4, bias=False))
    net.register_parameter("unused", nn.Parameter(torch.ones(5)))
    asked: list[object] = []
    genuine = weights_module._grad_size
    monkeypatch.setattr(weights_module, "_grad_size", lambda p: asked.append(p) or genuine(p))
    optimizer = train(made, net)
    for _ in range(300):
        train(made, net, optimizer)
    assert [row["name"] for row in made.rows() if row["grad"]] == ["1.weight"]
    assert len(asked) <= 2 * weights_module.GRADIENT_LOOKS + 1


def test_a_sparse_gradient_is_as_large_as_its_indices_and_values(made: Made) -> None:
    net = nn.Embedding(100, 4, sparse=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.tensor([3, 5])).sum().backward()
    optimizer.step()
    assert made.rows()[-1]["grad"] == 2 * 8 + 2 * 4 * 4


def test_a_lazy_module_is_told_when_it_has_a_shape(made: Made) -> None:
    net = nn.Sequential(nn.LazyLinear(2))
    net(torch.ones(1, 4))
    assert made.rows() == []
    train(made, net)
    assert {row["name"]: row["shape"] for row in made.rows()} == {"0.weight": [2, 4], "0.bias": [2]}


def test_the_users_torch_function_mode_does_not_see_us(made: Made) -> None:
    calls: list[Any] = []

    class Counting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **(kwargs or {}))

    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: int) -> int:
            return x

    net = Nothing()
    with Counting():
        net(1)
    assert len(made.rows()) == 1
    assert calls == []


def test_the_shards_of_fsdp2_are_told_with_the_local_size_and_the_whole_shape(made: Made) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        train(made, net)
        told = len(made.rows())
        fully_shard(net, mesh=mesh)
        optimizer = train(made, net)
        train(made, net, optimizer)
        again = made.rows(told)
        places = {name: p.to_local().data_ptr() for name, p in net.named_parameters()}
    finally:
        torch.distributed.destroy_process_group()
    assert {row["name"]: row["address"] for row in again if row["grad"]} == places
    assert {row["name"]: row["shape"] for row in again}["1.weight"] == [2, 4]
    assert {f["device_type"] for kind, f in made.recorded.records if kind is Kind.WEIGHT} == {DeviceType.CPU}


def test_what_a_rank_keeps_under_zero_3_is_told_with_the_whole_shape_and_nothing_is_taken_for_tied(
    made: Made,
) -> None:
    class Partitioned(nn.Linear):
        """As DeepSpeed leaves a module that does not run: empty, each parameter with its partition."""

        def __init__(self) -> None:
            super().__init__(4, 4)
            for parameter in self.parameters():
                parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
                parameter.ds_tensor = torch.zeros(-(-parameter.numel() // 2))  # type: ignore[attr-defined]
                parameter.data = torch.empty(0)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return given

    class Elsewhere(Partitioned):
        """All of it is kept by other ranks, or on a disk."""

        def __init__(self) -> None:
            super().__init__()
            for parameter in self.parameters():
                parameter.ds_tensor = torch.empty(0)  # type: ignore[attr-defined]

    net = nn.Sequential(Partitioned(), Elsewhere())
    net(torch.ones(1, 4))
    assert {row["name"]: (row["shape"], row["bytes"], row["address"]) for row in made.rows()} == {
        "0.weight": ([4, 4], 32, net[0].weight.ds_tensor.data_ptr()),
        "0.bias": ([4], 8, net[0].bias.ds_tensor.data_ptr()),
        "1.weight": ([4, 4], 0, 0),
        "1.bias": ([4], 0, 0),
    }
