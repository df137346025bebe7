"""Module paths and the forward phase, per thread, and that compiled code does not notice."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hook_recorder import Recorded
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.modules import Modules, path_of, unwrapped
from rankmem_agent.spool.layout import Phase


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
    genuine = torch_module._has_any_global_hook
    made = Recorded()
    handles = Modules(made, torch.compiler.is_compiling, Guard(0)).install()
    yield made
    for handle in handles:
        handle.remove()
    torch_module._has_any_global_hook = genuine
    torch._dynamo.reset()


def test_the_path_of_each_module_is_told_as_it_is_entered_and_left(recorded: Recorded) -> None:
    Net()(torch.ones(1, 2))
    block = [
        "Net.blocks.{0}",
        "Net.blocks.{0}.first",
        "Net.blocks.{0}",
        "Net.blocks.{0}.act",
        "Net.blocks.{0}",
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


def test_a_part_called_before_its_whole_is_renamed_when_the_whole_is_called(recorded: Recorded) -> None:
    net = Net()
    net.blocks[0](torch.ones(1, 2))
    assert recorded.modules[0] == "Block"
    net(torch.ones(1, 2))
    assert "Net.blocks.0.first" in recorded.modules


def test_wrappers_of_torch_are_no_part_of_a_path(recorded: Recorded) -> None:
    compiled = torch.compile(Net(), backend="eager")
    assert type(unwrapped(nn.Sequential(compiled))).__name__ == "Sequential"
    assert isinstance(unwrapped(compiled), Net)
    assert path_of("GPT", "_orig_mod.blocks.0._checkpoint_wrapped_module.mlp") == "GPT.blocks.0.mlp"
    assert path_of("GPT", "") == "GPT"


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


def test_a_module_whose_tree_cannot_be_read_switches_the_agent_off_and_runs_on(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    class Odd(nn.Module):
        def named_children(self) -> Any:
            raise AttributeError("not yet")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    odd = Odd()
    assert odd(torch.ones(1)).item() == 2
    assert odd(torch.ones(1)).item() == 2
    assert capsys.readouterr().err.count("the agent is off: AttributeError: not yet") == 1


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


def test_dynamo_still_warns_of_a_hook_of_the_user(recorded: Recorded) -> None:
    handle = torch_module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.warns(UserWarning, match="global hooks"):
            torch.compile(Net(), backend="eager")(torch.ones(1, 2))
    finally:
        handle.remove()
