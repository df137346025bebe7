"""Module paths and the forward phase, per thread, and that compiled code does not notice."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.modules import module as torch_module

from hook_recorder import Recorded
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.module_names import unwrapped
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.spool.layout import Kind, Phase


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.first(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    genuine, genuine_export = torch_module._has_any_global_hook, torch.export.export
    made = Recorded()
    handles = Modules(made, torch.compiler.is_dynamo_compiling, Guard(0)).install()
    yield made
    for handle in handles:
        handle.remove()
    torch_module._has_any_global_hook = genuine
    torch.export.export = genuine_export
    torch._dynamo.reset()


def test_the_path_of_each_module_is_told_as_it_is_entered_and_left(recorded: Recorded) -> None:
    Net()(torch.ones(1, 2))
    block = [
        "blocks.{0}",
        "blocks.{0}.first",
        "blocks.{0}",
        "blocks.{0}.act",
        "blocks.{0}",
        "Net",
    ]
    assert recorded.modules == ["Net", *(p.format(0) for p in block), *(p.format(1) for p in block), ""]
    assert recorded.phases == [Phase.FORWARD, Phase.OTHER]


def test_a_module_that_raises_is_left(recorded: Recorded) -> None:
    net = Net()
    with pytest.raises(RuntimeError):
        net(torch.ones(1, 3))
    assert recorded.modules[-1] == ""
    assert recorded.phases == [Phase.FORWARD, Phase.OTHER]


def test_an_interrupt_that_skips_the_hooks_does_not_shift_later_paths(recorded: Recorded) -> None:
    class Interrupted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Interrupted()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.inner(x)
            except KeyboardInterrupt:
                return x

    Outer()(torch.ones(1))
    assert recorded.modules[-1] == ""


def classes(recorded: Recorded) -> dict[str, str]:
    """The MODULE records: class by path; each path once."""
    told = [
        (recorded.strings[fields["path"]], recorded.strings[fields["class_name"]])
        for kind, fields in recorded.records
        if kind is Kind.MODULE
    ]
    assert len(told) == len(dict(told))
    return dict(told)


def test_a_path_is_the_name_in_named_modules_and_its_class_is_told_once(recorded: Recorded) -> None:
    net = Net()
    for _ in range(3):
        net(torch.ones(1, 2))
    named = {name: type(module).__name__ for name, module in net.named_modules()}
    del named["blocks"]  # a ModuleList is never called
    assert classes(recorded) == named | {"Net": named.pop("")}


def test_a_module_is_frozen_if_all_its_parameters_are_and_what_has_none_is_as_its_caller(
    recorded: Recorded,
) -> None:
    net = Net()
    net.blocks[0].requires_grad_(False)
    net.blocks[1].first.bias.requires_grad_(False)
    net(torch.ones(1, 2))
    frozen = {
        recorded.strings[fields["path"]]
        for kind, fields in recorded.records
        if kind is Kind.MODULE and fields["is_frozen"] == 1
    }
    assert frozen == {"blocks.0", "blocks.0.first", "blocks.0.act"}


def test_a_part_called_before_its_whole_has_its_name_in_the_whole(recorded: Recorded) -> None:
    net = Net()
    net.blocks[1](torch.ones(1, 2))
    assert recorded.modules[:3] == ["blocks.1", "blocks.1.first", "blocks.1"]


def test_a_part_copied_before_its_whole_was_called_is_renamed_with_it(recorded: Recorded) -> None:
    net = copy.deepcopy(Net())  # a copy is not registered anew
    net.blocks[0](torch.ones(1, 2))
    assert recorded.modules[:2] == ["Block", "first"]
    recorded.modules.clear()
    net(torch.ones(1, 2))
    assert recorded.modules[:3] == ["Net", "blocks.0", "blocks.0.first"]


def test_two_trees_never_share_a_path(recorded: Recorded) -> None:
    kept = [nn.Sequential(nn.ReLU()), Net(), nn.Sequential(nn.Tanh()), nn.Sequential(nn.GELU()), Net()]
    for net in kept:
        net(torch.ones(1, 2))
    told = classes(recorded)
    paths = [path for path, its_class in told.items() if its_class in ("ReLU", "Tanh", "GELU")]
    assert paths[0] == "0"
    assert {"Sequential", "Net", "Sequential#2", "Sequential#3", "Net#2"} <= told.keys()
    assert (told["Sequential#2.0"], told["Sequential#3.0"]) == ("Tanh", "GELU")
    assert {"blocks.0.first", "Net#2.blocks.0.first"} <= told.keys()


def test_a_tree_that_is_gone_gives_its_names_back(recorded: Recorded) -> None:
    for _ in range(3):
        nn.Sequential(nn.ReLU())(torch.ones(1))
        gc.collect()
    assert set(recorded.modules) == {"Sequential", "0", ""}


def test_a_module_made_within_a_forward_is_called_by_where_it_runs(recorded: Recorded) -> None:
    class Softmaxed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Sigmoid()(self.inner(x))

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Sequential(nn.Softmax(dim=0))(x)

    net = Softmaxed()
    for _ in range(3):
        net(torch.ones(1))
    assert classes(recorded) == {
        "Softmaxed": "Softmaxed",
        "inner": "Inner",
        "inner.Sequential": "Sequential",
        "inner.Sequential.0": "Softmax",
        "Sigmoid": "Sigmoid",
    }


def test_a_module_put_in_later_has_its_name_in_the_tree(recorded: Recorded) -> None:
    net = Net()
    net(torch.ones(1, 2))
    net.blocks[0].act = nn.Sequential(nn.Tanh())
    net(torch.ones(1, 2))
    assert classes(recorded)["blocks.0.act.0"] == "Tanh"


def test_one_module_in_two_places_has_the_first_name(recorded: Recorded) -> None:
    shared = nn.ReLU()
    nn.Sequential(shared, nn.Tanh(), shared)(torch.ones(1))
    assert recorded.modules == ["Sequential", "0", "Sequential", "1", "Sequential", "0", "Sequential", ""]


def test_wrappers_of_torch_are_no_part_of_a_path(recorded: Recorded) -> None:
    net = Net()
    net.blocks[0] = checkpoint_wrapper(net.blocks[0])
    net.blocks[1] = torch.compile(net.blocks[1], backend="eager")
    with torch.no_grad():  # else Dynamo stumbles over a warning of its own, which is an error in our tests
        net(torch.ones(1, 2))
    told = classes(recorded)
    assert told["blocks.0"] == told["blocks.1"] == "Block"
    assert told["blocks.0.first"] == "Linear"
    assert not any("_orig_mod" in path or "_checkpoint" in path for path in told)


def test_the_whole_of_a_wrapper_is_what_it_wraps_and_of_a_holder_the_holder() -> None:
    net = Net()
    assert unwrapped(torch.compile(checkpoint_wrapper(net), backend="eager")) is net
    assert unwrapped(holder := nn.Sequential(net)) is holder


def test_ddp_has_its_class_as_path_and_the_model_within_its_own_names(recorded: Recorded) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        nn.parallel.DistributedDataParallel(Net())(torch.ones(1, 2))
    finally:
        torch.distributed.destroy_process_group()
    assert recorded.modules[:3] == ["DistributedDataParallel", "Net", "blocks.0"]


def test_each_thread_has_its_own_path(recorded: Recorded) -> None:
    net, inside, seen = Net(), threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            assert seen.wait(10)
            return x

    waiting = Waiting()
    thread = threading.Thread(target=waiting, args=(torch.ones(1),))
    thread.start()
    assert inside.wait(10)
    net(torch.ones(1, 2))
    assert recorded.modules[-1] == ""  # this thread is outside; the other one is not
    seen.set()
    thread.join()
    assert recorded.modules.count("Waiting") == 1


def test_no_module_is_kept_alive(recorded: Recorded) -> None:
    net = Net()
    net(torch.ones(1, 2))
    gone = weakref.ref(net.blocks[0].first)
    del net
    gc.collect()
    assert gone() is None


def test_a_module_with_odd_methods_of_its_own_is_named_without_them(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    class Odd(nn.Module):
        """Nothing here may be called by anybody."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1, 1)

        def _raises(self, *args: Any, **kwargs: Any) -> Any:
            raise AttributeError("not yet")

        named_children = named_parameters = named_modules = parameters = modules = children = _raises
        __eq__ = __len__ = __bool__ = __iter__ = __repr__ = _raises
        __hash__ = None  # type: ignore[assignment]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 0 + 2

    odd = Odd()
    assert odd(torch.ones(1)).item() == 2
    assert odd(torch.ones(1)).item() == 2
    assert capsys.readouterr().err == ""
    assert classes(recorded) == {"Odd": "Odd", "inner": "Linear"}


@pytest.mark.parametrize("compile_part", ["module", "function", "method"])
def test_a_compiled_model_has_one_full_graph_and_no_warning(recorded: Recorded, compile_part: str) -> None:
    net, graphs = Net(), 0

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        nonlocal graphs
        graphs += 1
        return graph

    if compile_part == "method":
        net.compile(backend=backend, fullgraph=True)
        run: Any = net
    else:
        part = net if compile_part == "module" else (lambda x: net(x) + 1)
        run = torch.compile(part, backend=backend, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as a user's -W error, set after us
        for _ in range(3):
            run(torch.ones(1, 2))
    assert graphs == 1


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_is_exported_as_without_hooks_which_are_there_again_afterwards(
    recorded: Recorded, strict: bool
) -> None:
    before = [list(torch_module._global_forward_pre_hooks), list(torch_module._global_forward_hooks)]
    program = torch.export.export(Net(), (torch.ones(1, 2),), strict=strict)
    assert len(list(program.graph.nodes)) == 10
    with pytest.raises(ValueError, match="instance of"):
        torch.export.export("no model", (torch.ones(1, 2),), strict=strict)
    assert recorded.modules == []
    after = [list(torch_module._global_forward_pre_hooks), list(torch_module._global_forward_hooks)]
    assert before == after != [[], []]
    Net()(torch.ones(1, 2))
    assert "blocks.0.first" in recorded.modules


def test_dynamo_still_warns_of_a_hook_of_the_user(recorded: Recorded) -> None:
    handle = torch_module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.warns(UserWarning, match="global hooks"):
            torch.compile(Net(), backend="eager")(torch.ones(1, 2))
    finally:
        handle.remove()
