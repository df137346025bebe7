"""What is told of FSDP1, ZeRO-3 and caches of transformers, by classes shaped like theirs."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hook_recorder import Recorded
from rankmem_agent.hooks import caches, deepspeed, fsdp1
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.sharding import Sharding
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.spool.layout import Category

PARAMETER, GRADIENT, CACHE = Category.PARAMETER, Category.GRADIENT, Category.KV_CACHE


def looked(recorded: Recorded, root: object = None) -> tuple[Sharding, Guard]:
    guard = Guard(0)
    sharding = Sharding(recorded, torch.compiler.is_compiling, guard, Steps(recorded))
    sharding.look(root)
    return sharding, guard


def told(recorded: Recorded) -> list[tuple[Category, int]]:
    return [(category, address) for category, address, _ in recorded.tags()]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    made = ModuleType("theirs")
    monkeypatch.setitem(sys.modules, request.param, made)
    if request.param.startswith("deepspeed."):  # its package is what is looked for
        monkeypatch.setitem(sys.modules, request.param.rpartition(".")[0], ModuleType("zero"))
    return made


class Handle:
    """Shaped like FSDP1's FlatParamHandle."""

    def __init__(self) -> None:
        self.flat_param = SimpleNamespace(_local_shard=torch.zeros(2), grad=torch.zeros(4))
        self.whole = torch.zeros(4)

    def init_flat_param_attributes(self) -> str:
        return "initialised"

    def _alloc_padded_unsharded_flat_param(self) -> torch.Tensor:
        return self.whole


@pytest.mark.parametrize("module", [fsdp1.FLAT], indirect=True)
def test_flat_parameters_are_told_when_they_are_made_and_gathered(module: Any) -> None:
    class Own(Handle): ...

    module.FlatParamHandle = Own
    recorded, handle = Recorded(), Own()
    _, guard = looked(recorded)
    assert handle.init_flat_param_attributes() == "initialised"
    assert handle._alloc_padded_unsharded_flat_param() is handle.whole
    assert told(recorded) == [
        (PARAMETER, handle.flat_param._local_shard.data_ptr()),
        (PARAMETER, handle.whole.data_ptr()),
    ]
    assert not guard.failures


@pytest.mark.parametrize("module", [fsdp1.RUNTIME], indirect=True)
def test_flat_gradients_are_told_before_and_for_their_reduction(module: Any) -> None:
    sent, received = torch.zeros(4), torch.zeros(2)
    module._post_backward_hook = lambda state, handle, *unused: "reduced"
    module._get_reduce_scatter_tensors = lambda state, gradient: (sent, received)
    recorded, handle = Recorded(), Handle()
    looked(recorded)
    assert module._post_backward_hook(None, handle, handle.flat_param) == "reduced"
    assert module._get_reduce_scatter_tensors(None, handle.flat_param.grad) == (sent, received)
    gradients = [handle.flat_param.grad, handle.flat_param.grad, sent, received]
    assert told(recorded) == [(GRADIENT, each.data_ptr()) for each in gradients]


@pytest.mark.parametrize("module", [deepspeed.PARTITION], indirect=True)
def test_gathered_parameters_of_zero_3_are_told_when_they_have_come(module: Any) -> None:
    class AllGatherHandle:
        def __init__(self, param: Any) -> None:
            self.__param = param

        def wait(self, handle_dependency: bool = True) -> str:
            return "come"

    class AllGatherCoalescedHandle:
        def __init__(self, params: list[Any], partitions: list[Any]) -> None:
            self.params, self.partitions = params, partitions

        def wait(self, handle_dependency: bool = True) -> None: ...

    module.AllGatherHandle, module.AllGatherCoalescedHandle = AllGatherHandle, AllGatherCoalescedHandle
    recorded = Recorded()
    one, several, flat = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4)), torch.zeros(8)
    looked(recorded)
    assert AllGatherHandle(one).wait(handle_dependency=False) == "come"
    AllGatherCoalescedHandle([several], [flat]).wait()
    assert told(recorded) == [(PARAMETER, each.data_ptr()) for each in (one, several, flat)]


@pytest.mark.parametrize("module", [deepspeed.STAGE_3], indirect=True)
def test_what_zero_3_holds_is_told_when_a_model_runs_and_its_gradients_when_they_are_partitioned(
    module: Any,
) -> None:
    class DeepSpeedZeroOptimizer_Stage3:
        def __init__(self) -> None:
            self.grad_partitions_flat_buffer = torch.zeros(4)
            self.ipg_buckets = {torch.float32: SimpleNamespace(buffer=torch.zeros(16))}

        def partition_grads(self, params: list[Any], partitions: list[Any]) -> str:
            return "partitioned"

    module.DeepSpeedZeroOptimizer_Stage3 = DeepSpeedZeroOptimizer_Stage3
    optimizer, model, part = DeepSpeedZeroOptimizer_Stage3(), nn.Linear(2, 2, bias=False), torch.zeros(2)
    model.weight.ds_tensor, model.weight._z3_optimizer = torch.zeros(2), optimizer  # type: ignore[assignment]
    recorded = Recorded()
    looked(recorded, model)
    model.weight.grad = torch.zeros(2, 2)
    assert optimizer.partition_grads([model.weight], [part]) == "partitioned"
    assert told(recorded) == [
        (PARAMETER, model.weight.ds_tensor.data_ptr()),
        (GRADIENT, optimizer.grad_partitions_flat_buffer.data_ptr()),
        (GRADIENT, optimizer.ipg_buckets[torch.float32].buffer.data_ptr()),
        (GRADIENT, model.weight.grad.data_ptr()),
        (GRADIENT, part.data_ptr()),
    ]


class Cache:
    """Shaped like transformers' from 4.54 on."""

    def __init__(self) -> None:
        self.layers = [SimpleNamespace(keys=torch.zeros(4), values=torch.zeros(4)) for _ in range(2)]

    def update(self, keys: Any, values: Any, layer_idx: int) -> str:
        return "updated"


@pytest.mark.parametrize("module", [caches.TRANSFORMERS], indirect=True)
def test_keys_and_values_are_told_when_a_layer_has_updated_them(module: Any) -> None:
    class Own(Cache): ...

    class Old(Own):
        def __init__(self) -> None:
            self.key_cache, self.value_cache = [torch.zeros(4)], [torch.zeros(4)]

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

        def update(self, keys: Any, values: Any, layer_idx: int) -> str:
            return "old"

    Own.update = Cache.update  # type: ignore[method-assign]
    module.Cache, module.DynamicCache, module.Number = Own, Old, 3
    recorded, new, old = Recorded(), Own(), Old()
    _, guard = looked(recorded)
    assert new.update(None, None, layer_idx=1) == "updated"
    assert old.update(None, None, 0) == "old"
    kept = [new.layers[1].keys, new.layers[1].values, old.key_cache[0], old.value_cache[0]]
    assert told(recorded) == [(CACHE, each.data_ptr()) for each in kept]
    assert not guard.failures


@pytest.mark.parametrize(
    "module",
    [fsdp1.FLAT, fsdp1.RUNTIME, deepspeed.PARTITION, deepspeed.STAGE_3, caches.TRANSFORMERS],
    indirect=True,
)
def test_where_their_classes_are_others_nothing_is_told_and_nothing_breaks(module: Any) -> None:
    recorded = Recorded()
    _, guard = looked(recorded, nn.Linear(2, 2))
    assert not recorded.records
    assert not guard.failures


@pytest.mark.parametrize("module", [caches.TRANSFORMERS], indirect=True)
def test_what_the_class_raises_is_raised_and_a_layer_that_cannot_be_read_is_not_told(module: Any) -> None:
    class Own(Cache):
        def update(self, keys: Any, values: Any, layer_idx: int) -> str:
            if keys is None:
                raise ValueError("no keys")
            return "updated"

    module.Cache = Own
    recorded = Recorded()
    sharding, guard = looked(recorded)
    with pytest.raises(ValueError, match="no keys"):
        Own().update(None, None, 0)
    assert Own().update(1, 1, 7) == "updated"
    assert not recorded.records
    assert not guard.failures
    sharding.stop()
    assert Own().update(1, 1, 0) == "updated"
    assert not recorded.records
