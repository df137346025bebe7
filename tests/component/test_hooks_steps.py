"""What a training step is, for one optimizer, several, nested ones, and for a user who tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hook_recorder import Recorded, step_hooks
from rankmem_agent.hooks import deepspeed
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.recorder import Removable
from rankmem_agent.hooks.steps import REPEATS_MAX, Steps
from rankmem_agent.spool.layout import IN_CLOSURE, Phase

Made = tuple[Recorded, Steps]


@pytest.fixture
def made() -> Iterator[Made]:
    recorded = Recorded()
    steps = Steps(recorded)
    handles: list[Removable] = step_hooks(recorded, Guard(0), steps=steps).install()
    yield recorded, steps
    for handle in handles:
        handle.remove()


def _optimizer(kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> torch.optim.Optimizer:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return kind([weight], lr=0.1)


def _step(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        optimizer.step()


def test_with_one_optimizer_each_step_ends_one(made: Made) -> None:
    recorded, _ = made
    optimizer = _optimizer(torch.optim.AdamW)
    _step(optimizer, optimizer, optimizer)
    assert recorded.steps() == [(0, "AdamW"), (1, "AdamW"), (2, "AdamW")]
    assert recorded.step == 3
    assert recorded.phases == [Phase.OPTIMIZER, Phase.OTHER] * 3


def test_with_two_optimizers_a_round_of_both_is_a_step_ended_by_the_second(made: Made) -> None:
    recorded, _ = made
    critic, generator = _optimizer(), _optimizer(torch.optim.Adam)
    _step(critic, generator)
    first_round = len(recorded.steps())
    for _ in range(3):
        _step(critic, generator)
    assert recorded.steps()[first_round:] == [(first_round + n, "Adam") for n in range(3)]


def test_five_critic_steps_and_one_of_the_generator_are_one_step(made: Made) -> None:
    recorded, _ = made
    critic, generator = _optimizer(), _optimizer(torch.optim.Adam)
    _step(*[critic] * 5, generator)
    first_round = len(recorded.steps())
    for _ in range(4):
        _step(*[critic] * 5, generator)
    assert [name for _, name in recorded.steps()[first_round:]] == ["Adam"] * 4


def test_an_optimizer_for_each_parameter_makes_one_step_a_round(made: Made) -> None:
    recorded, _ = made
    optimizers = [_optimizer() for _ in range(40)]
    _step(*optimizers)
    first_round = len(recorded.steps())
    _step(*optimizers, *optimizers)
    assert len(recorded.steps()) - first_round == 2


def test_an_optimizer_that_is_used_no_more_is_not_waited_for(made: Made) -> None:
    recorded, _ = made
    warm_up, main = _optimizer(), _optimizer(torch.optim.Adam)
    _step(*[warm_up] * 3)
    _step(*[main] * 50)
    assert len(recorded.steps()) >= 3 + 50 - REPEATS_MAX - 3


def test_an_optimizer_that_is_gone_is_not_waited_for(made: Made) -> None:
    recorded, _ = made
    warm_up = _optimizer()
    _step(warm_up)
    del warm_up
    main = _optimizer(torch.optim.Adam)
    _step(main, main)
    assert recorded.steps() == [(0, "SGD"), (1, "Adam"), (2, "Adam")]


def test_an_optimizer_inside_another_is_part_of_its_step(made: Made) -> None:
    recorded, _ = made
    inner = _optimizer()

    class Sharded(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            inner.step()

    outer = Sharded([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    _step(outer, outer)
    assert recorded.steps() == [(0, "Sharded"), (1, "Sharded")]


class Zero:
    """None of torch's optimizers; steps for one group of parameters after the other, as DeepSpeed's ZeRO."""

    def __init__(self, optimizer: torch.optim.Optimizer, groups: int) -> None:
        self.optimizer, self.groups = optimizer, groups

    def step(self) -> str:
        for _ in range(self.groups):
            self.optimizer.step()
        if self.groups < 0:
            self.optimizer.step()
            raise ZeroDivisionError
        return "stepped"


@pytest.fixture
def zero(made: Made) -> type[Zero]:
    module = ModuleType(deepspeed.STAGE_1_AND_2)
    kind = type("DeepSpeedZeroOptimizer", (Zero,), {"step": Zero.step})
    module.DeepSpeedZeroOptimizer = kind  # type: ignore[attr-defined]
    deepspeed.wrap_stage_1_and_2(module, made[1])
    return kind


def test_zero_s_steps_for_each_group_of_parameters_are_one(made: Made, zero: type[Zero]) -> None:
    recorded, _ = made
    outer = zero(_optimizer(torch.optim.AdamW), groups=3)
    assert [outer.step() for _ in range(3)] == ["stepped"] * 3
    assert recorded.steps() == [(0, "AdamW"), (1, "AdamW"), (2, "AdamW")]
    assert recorded.phases[-1] == Phase.OTHER
    assert recorded.phases.count(Phase.OTHER) == 3


def test_a_step_that_zero_skips_is_none(made: Made, zero: type[Zero]) -> None:
    recorded, _ = made
    optimizer = _optimizer()
    zero(optimizer, groups=2).step()
    zero(optimizer, groups=0).step()
    assert recorded.steps() == [(0, "SGD")]


def test_a_step_of_zero_s_that_raised_leaves_the_count_in_order(made: Made, zero: type[Zero]) -> None:
    recorded, steps = made
    optimizer = _optimizer()
    with pytest.raises(ZeroDivisionError):
        zero(optimizer, groups=-1).step()
    assert (recorded.steps(), recorded.phases[-1], steps.inside.stack) == ([], Phase.OTHER, [])
    _step(optimizer)
    zero(optimizer, groups=2).step()
    assert recorded.steps() == [(0, "SGD"), (1, "SGD")]


def test_a_zero_of_another_version_is_left_as_it_is(made: Made) -> None:
    module = ModuleType(deepspeed.STAGE_3)
    before = dict(vars(module))
    deepspeed.wrap_stage_3(module, lambda _: None, made[1])
    assert vars(module) == before


def test_a_step_with_a_closure_says_so_until_it_ends(made: Made) -> None:
    recorded, steps = made
    optimizer, outside = _optimizer(), []

    def closure() -> float:
        outside.append(steps.phase_outside)
        return 0.0

    optimizer.step(closure)
    _step(optimizer)
    assert recorded.phases == [IN_CLOSURE, Phase.OTHER, Phase.OPTIMIZER, Phase.OTHER]
    assert (outside, steps.phase_outside) == ([IN_CLOSURE], Phase.OTHER)


def test_a_closure_that_an_outer_optimizer_was_given_holds_for_the_inner_one_too(made: Made) -> None:
    recorded, _ = made
    inner = _optimizer()

    class Sharded(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            inner.step()

    Sharded([torch.nn.Parameter(torch.ones(1))], lr=0.1).step(closure=lambda: 0.0)
    assert recorded.phases == [IN_CLOSURE, IN_CLOSURE, Phase.OTHER]


def test_a_closure_that_raised_does_not_hold_for_the_next_step(made: Made) -> None:
    recorded, _ = made
    optimizer = _optimizer()

    def closure() -> float:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(closure)
    _step(optimizer)
    assert recorded.phases == [IN_CLOSURE, Phase.OPTIMIZER, Phase.OTHER]


def test_a_step_that_raised_leaves_the_count_in_order(made: Made) -> None:
    recorded, _ = made

    class Failing(torch.optim.SGD):
        fail = True

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            if self.fail:
                raise RuntimeError("out of memory")

    optimizer = Failing([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    optimizer.fail = False
    _step(optimizer)
    assert recorded.steps() == [(0, "Failing")]


def test_an_optimizer_whose_step_raised_for_good_does_not_hold_up_another_one(made: Made) -> None:
    recorded, _ = made

    class Failing(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            raise RuntimeError("out of memory")

    failing = Failing([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(RuntimeError, match="out of memory"):
        failing.step()
    other = _optimizer(torch.optim.AdamW)
    _step(other, other)
    assert [name for _, name in recorded.steps()] == ["AdamW", "AdamW"]
    assert recorded.phases[-1] == Phase.OTHER


def test_steps_are_seen_while_the_hooks_are_off() -> None:
    recorded, seen = Recorded(), []
    hooks = step_hooks(recorded, Guard(0))
    hooks.when_off(lambda: seen.append(1))
    handles = hooks.install()
    optimizer = _optimizer()
    _step(optimizer)
    assert seen == [], "while they are on, the parts are told"
    hooks.stop()
    _step(optimizer, optimizer)
    for handle in handles:
        handle.remove()
    assert seen == [1, 1]


def test_a_step_that_the_user_tells_ends_the_guessing(made: Made) -> None:
    recorded, steps = made
    optimizer = _optimizer()
    _step(optimizer)
    steps.ended_by_user()
    _step(optimizer, optimizer)
    steps.ended_by_user()
    assert recorded.steps() == [(0, "SGD"), (1, "user"), (2, "user")]


def test_after_stop_nothing_is_told() -> None:
    recorded = Recorded()
    steps = Steps(recorded)
    hooks = step_hooks(recorded, Guard(0), steps=steps)
    handles = hooks.install()
    for each in (hooks, steps):
        each.stop()
    _step(_optimizer())
    steps.ended_by_user()
    for handle in handles:
        handle.remove()
    assert recorded.steps() == []
    assert recorded.phases == []


def test_a_failure_of_ours_is_said_once_and_never_reaches_the_user(
    made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, _ = made

    def broken(_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(recorded, "set_phase", broken)
    optimizer = _optimizer()
    _step(optimizer, optimizer)
    assert capsys.readouterr().err == (
        "rankmem: rank 0: steps and gradients are no longer recorded: OSError: no room "
        "(try: rankmem doctor)\n"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it traces
def test_a_compiled_optimizer_has_the_same_graphs_with_the_hooks(made: Made) -> None:
    optimizer = _optimizer()
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    torch.compile(optimizer.step, backend=backend, fullgraph=False)()
    with_hooks = len(graphs)
    for hooks in (_global_optimizer_pre_hooks, _global_optimizer_post_hooks):
        hooks.clear()
    torch._dynamo.reset()
    torch.compile(_optimizer().step, backend=backend, fullgraph=False)()
    assert len(graphs) == 2 * with_hooks
