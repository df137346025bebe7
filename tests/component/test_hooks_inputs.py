"""What a call of the model is given, and which calls end a step: with a recorder of lists, by hooks."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import weakref
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as torch_module

from hook_recorder import Recorded
from rankmem_agent.hooks import model_calls, weights
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.inputs import LOOKED_AT_MAX, TENSORS_MAX, inputs_of
from rankmem_agent.hooks.model_calls import (
    ASKED_MAX,
    CALLS_MAX,
    NOT_IN_THIS_STEP,
    ROOM_SHIFT,
    SAME_AGAIN,
    ModelCalls,
    OptimizersMade,
)
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.plain_tensors import tag_tensors
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import address_of, addresses_of, device_of, size_of, wants_gradient
from rankmem_agent.hooks.tracing import tracing_of
from rankmem_agent.spool.layout import Kind

Pair = namedtuple("Pair", "image mask")


class Odd(torch.Tensor):
    """Answers nothing that one may ask of it."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")

    def numel(self) -> int:
        raise ArithmeticError("countless")


class Made:
    """Whether the test says that an optimizer was made."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced

    def __call__(self) -> bool:
        return self.traced.has_optimizer

    def when_made(self, callback: Callable[[], None]) -> bool:
        raise AssertionError("only what reads frames asks")


class Traced:
    """The agent's parts that see calls of modules by hooks."""

    def __init__(self) -> None:
        self.recorded, self.guard, self.has_optimizer = Recorded(), Guard(0), False
        self.steps = Steps(self.recorded)
        tracing = tracing_of(torch)
        self.modules = Modules(self.recorded, tracing.by_dynamo, self.guard, tracing=tracing)
        self.calls = ModelCalls(
            self.recorded, tracing, self.guard, self.steps, self.modules.path_id, Made(self)
        )

    def inputs(self) -> list[tuple[int, str, list[Any]]]:
        """The INPUT records: step, module, shapes."""
        return [
            (
                fields["step"],
                self.recorded.strings[fields["module"]],
                [each[2] for each in json.loads(self.recorded.strings[fields["facts"]])["tensors"]],
            )
            for kind, fields in self.recorded.records
            if kind is Kind.INPUT
        ]


@pytest.fixture
def traced() -> Iterator[Traced]:
    genuine, genuine_export = torch_module._has_any_global_hook, torch.export.export
    made = Traced()
    handles = made.modules.install_hooks()
    made.modules.watch_calls(made.calls, 0)
    yield made
    assert made.guard.failures == 0
    for handle in handles:
        handle.remove()
    torch_module._has_any_global_hook = genuine
    torch.export.export = genuine_export
    torch._dynamo.reset()


def described(*args: Any, **kwargs: Any) -> list[tuple[str, str, tuple[int, ...], int]]:
    return list(inputs_of(torch.Tensor, args, kwargs).tensors)


def test_tensors_are_found_in_arguments_and_in_containers_by_name() -> None:
    ids = torch.ones(2, 3, dtype=torch.int64)
    assert described(ids, batch={"mask": torch.ones(2), 7: [torch.ones(1)]}, pair=Pair(ids, None)) == [
        ("0", "int64", (2, 3), 48),
        ("batch.mask", "float32", (2,), 8),
        ("batch.1.0", "float32", (1,), 4),
        ("pair.0", "int64", (2, 3), 48),
    ]
    assert described(UserDict(input_ids=ids)) == [("0.input_ids", "int64", (2, 3), 48)]
    assert described(3, "text", None, object()) == []


def test_what_is_beyond_a_bound_is_counted_and_its_bytes_too() -> None:
    many = inputs_of(torch.Tensor, ([torch.ones(2)] * 20,), None)
    assert (len(many.tensors), many.num_left_out, many.size_bytes) == (TENSORS_MAX, 4, 160)
    endless: list[Any] = []
    endless += [endless, torch.ones(1)]
    assert described(endless) == [("0.0.1", "float32", (1,), 4), ("0.1", "float32", (1,), 4)]
    assert inputs_of(torch.Tensor, (range(3), [0] * (LOOKED_AT_MAX + 5)), None).num_left_out == 1
    assert len(many.text()) < 2048


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nothing_of_the_users_runs_and_a_tensor_without_a_shape_is_left_out() -> None:
    class Loud(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError

        def __iter__(self) -> Any:
            raise AssertionError

    shapeless = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    found = inputs_of(torch.Tensor, (Loud(x=torch.ones(2)), torch.ones(3).as_subclass(Odd), shapeless), None)
    assert found.tensors == (("0.x", "float32", (2,), 8), ("1", "float32", (3,), 12))
    assert found.num_left_out == 1


def test_no_tensor_is_kept(traced: Traced) -> None:
    model, batch = nn.Linear(2, 2), torch.ones(1, 2)
    gone = weakref.ref(batch)
    model(batch)
    del batch
    gc.collect()
    assert gone() is None
    gone_model = weakref.ref(model)
    del model
    gc.collect()
    assert gone_model() is None


def test_each_call_of_the_model_is_a_step_as_it_returns(traced: Traced) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with torch.no_grad():
        for size in (1, 2, 3):
            nn.MSELoss()(model(torch.ones(size, 2)), torch.ones(size, 2))
    assert traced.recorded.steps() == [(0, "model call"), (1, "model call"), (2, "model call")]
    assert traced.inputs() == [(size - 1, "Sequential", [[size, 2]]) for size in (1, 2, 3)]
    traced.calls.finish()
    assert len(traced.recorded.steps()) == 3


def test_where_autograd_records_a_step_lasts_until_the_next_call_or_the_end(traced: Traced) -> None:
    model = nn.Linear(2, 2)
    for size in (1, 2):
        model(torch.ones(size, 2)).sum().backward()
        assert len(traced.recorded.steps()) == size - 1
    traced.calls.finish()
    assert traced.recorded.steps() == [(0, "model call"), (1, "model call")]
    assert [step for step, *_ in traced.inputs()] == [0, 1]


def test_the_model_is_the_largest_module_that_is_called(traced: Traced) -> None:
    encoder, unet, loss = nn.Linear(2, 2), nn.Linear(2, 9), nn.MSELoss()
    with torch.no_grad():
        for _ in range(2):
            hidden = encoder(torch.ones(1, 2))
            for _ in range(3):
                unet(hidden)
            loss(hidden, hidden)
    assert [step for step, _ in traced.recorded.steps()] == list(range(7)), "one of encoder, 6 of unet"
    del unet
    gc.collect()
    with torch.no_grad():
        encoder(torch.ones(1, 2))
    assert len(traced.recorded.steps()) == 8, "the largest that is left"


@pytest.mark.parametrize("grad", [False, True], ids=["without autograd", "frozen"])
def test_of_two_as_large_the_one_that_is_trained_is_the_model(traced: Traced, grad: bool) -> None:
    """Whichever is called first. A larger one is the model though it is frozen: its input may be longer."""
    model, copy = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2).requires_grad_(not grad)
    backbone = nn.Linear(2, 9).requires_grad_(False)
    traced.has_optimizer = True
    for size in (1, 2, 3):
        with torch.set_grad_enabled(grad):
            copy(torch.ones(9, 2))
        model(torch.ones(size, 2)).sum().backward()
    backbone(torch.ones(8, 2))
    model(torch.ones(4, 2))
    told = [(path, *shapes) for _, path, shapes in traced.inputs()]
    trained = [("Sequential", [size, 2]) for size in (1, 2, 3)]
    assert told == [("Linear", [9, 2]), *trained, ("Linear#2", [8, 2])]


def test_of_models_that_are_trained_the_largest_counts_and_its_validation_too(traced: Traced) -> None:
    critic, actor = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 9))
    traced.has_optimizer = True
    critic(torch.ones(1, 2))
    actor(torch.ones(2, 2))
    critic(torch.ones(3, 2))
    with torch.no_grad():
        actor(torch.ones(4, 2))
        critic(torch.ones(5, 2))
    assert [shapes for *_, shapes in traced.inputs()] == [[[1, 2]], [[2, 2]], [[4, 2]]]
    del actor
    gc.collect()
    critic(torch.ones(6, 2))
    assert [path for _, path, _ in traced.inputs()][-1] == "Linear", "the largest that is left"


def test_parameters_of_the_users_own_class_and_lazy_ones_are_counted(
    traced: Traced,
) -> None:
    # While its first call begins, a lazy module has none.
    odd, lazy = nn.Linear(2, 2), nn.LazyLinear(2)
    odd._parameters["odd"] = nn.Parameter(torch.ones(3).as_subclass(Odd))
    with torch.no_grad():
        odd(torch.ones(1, 2))
        lazy(torch.ones(1, 9))
        lazy(torch.ones(2, 9))
    assert traced.inputs() == [(0, "Linear", [[1, 2]]), (1, "LazyLinear", [[2, 9]])]


@pytest.mark.parametrize("by", ["optimizer", "user", "stepped"])
def test_in_a_training_no_call_ends_a_step(traced: Traced, by: str) -> None:
    model = nn.Linear(2, 2)
    if by == "user":
        traced.steps.ended_by_user()
    traced.has_optimizer = by != "user"
    before = len(traced.recorded.steps())
    with torch.no_grad():
        model(torch.ones(1, 2))
    model(torch.ones(1, 2)).sum().backward()
    traced.calls.finish()
    assert len(traced.recorded.steps()) == before


def test_an_optimizer_that_is_made_is_seen_and_one_that_is_only_imported_is_not() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            """Nothing."""

    marked = [each for each in (torch.optim.Optimizer, torch.optim.SGD, Own) if "hooked" in vars(each.step)]
    assert Own not in marked
    Own([nn.Parameter(torch.ones(1))])
    assert OptimizersMade()()


OPTIMIZERS = """
import sys, torch
from torch import nn
from rankmem_agent.hooks.model_calls import OptimizersMade
which = sys.argv[1]
parameters = [nn.Parameter(torch.ones(1))]
if which == "before":
    torch.optim.SGD(parameters, lr=0.1)
if which == "not told":
    genuine = torch.optim.Optimizer._patch_step_function
    del torch.optim.Optimizer._patch_step_function
made, told = OptimizersMade(), []
assert made.when_made(lambda: told.append(True)) is (which != "not told")
assert made() is bool(told) is (which == "before")
class Own(torch.optim.SGD):
    pass
if which == "not told":
    torch.optim.Optimizer._patch_step_function = genuine
if which == "refused":
    try: torch.optim.Adam([])
    except ValueError: pass
else:
    optimizer = {"own": Own}.get(which, torch.optim.Adam)(parameters)
    parameters[0].sum().backward()
    optimizer.step()
assert made() and told == [True] * (which != "not told")
"""


@pytest.mark.parametrize("which", ["own", "torch", "before", "refused", "not told"])
def test_an_optimizer_is_told_of_as_it_is_made(which: str) -> None:
    # In a process of its own: the tests' has made optimizers.
    done = subprocess.run([sys.executable, "-c", OPTIMIZERS, which], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_inputs_are_recorded_of_a_few_calls_with_and_without_autograd(traced: Traced) -> None:
    traced.has_optimizer = True
    model = nn.Linear(2, 2)
    with torch.no_grad():
        answers = [traced.calls.entered(model, (torch.ones(1, 2),), None) for _ in range(ASKED_MAX)]
    quiet = [answer & NOT_IN_THIS_STEP for answer in answers]
    assert quiet == [0] * (CALLS_MAX - 1) + [NOT_IN_THIS_STEP] * (ASKED_MAX - CALLS_MAX + 1)
    assert [answer >> ROOM_SHIFT for answer in answers[: CALLS_MAX + 1]] == [*range(CALLS_MAX - 1, -1, -1), 0]
    traced.calls.entered(model, (torch.ones(5, 2),), None)
    assert [shapes for *_, shapes in traced.inputs()] == [[[1, 2]]] * CALLS_MAX + [[[5, 2]]]
    other = nn.ReLU()
    last = [traced.calls.entered(other, (), None) for _ in range(ASKED_MAX)][-1]
    assert last == NOT_IN_THIS_STEP | SAME_AGAIN


def test_of_inputs_that_never_repeat_the_bytes_alone_are_recorded(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_calls, "TEXTS_MAX", 2)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        for length in (1, 2, 3, 4, 1):
            model(torch.ones(length, 4))
    assert [shapes for _, _, shapes in traced.inputs()] == [[[1, 4]], [[2, 4]], [], [], [[1, 4]]]
    of_inputs = [fields for kind, fields in traced.recorded.records if kind is Kind.INPUT]
    figures = [(fields["size_bytes"], fields["num_left_out"]) for fields in of_inputs]
    assert figures == [(16, 0), (32, 0), (48, 1), (64, 1), (16, 0)]


def jit(model: nn.Module) -> None:
    torch.jit.trace(model, torch.ones(1, 2), check_trace=False)


def fake(model: nn.Module) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.empty(1, 2))


def functorch(model: nn.Module) -> None:
    torch.func.vmap(model)(torch.ones(3, 1, 2))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
@pytest.mark.parametrize("silently", [jit, fake, functorch])
def test_nothing_is_recorded_of_inputs_that_are_traced_or_wrapped(
    traced: Traced, silently: Callable[[nn.Module], None]
) -> None:
    with torch.no_grad():
        silently(nn.Linear(2, 2))
    assert traced.inputs() == []
    if silently is not functorch:
        assert traced.recorded.steps() == []


def test_a_failure_switches_this_part_off_and_nothing_else(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(2, 2)

    def broken(*_: Any) -> int:
        raise OverflowError("odd")

    monkeypatch.setattr(traced.modules, "path_id", broken)
    monkeypatch.setattr(traced.calls, "_path_of", broken)
    assert traced.calls.entered(model, (torch.ones(1, 2),), None) == 2
    assert "inputs and steps of inference are no longer recorded" in capsys.readouterr().err
    assert traced.guard.failures == 1
    traced.guard.failures = 0
    assert traced.calls.entered(model, (torch.ones(1, 2),), None) == 2
    assert traced.recorded.steps() == []


class TooLong(Exception):
    """What the program raises when its time is up."""


class Slow:
    """Asking it anything takes until then."""

    def __getattr__(self, name: str) -> Any:
        signal.raise_signal(signal.SIGALRM)
        raise AttributeError(name)

    @property
    def shape(self) -> tuple[int, ...]:
        signal.raise_signal(signal.SIGALRM)
        return ()


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param(lambda: inputs_of(Slow, (Slow(),), None), id="inputs"),
        pytest.param(lambda: tag_tensors(Recorded(), Slow(), "kv_cache", ""), id="tag"),
        pytest.param(lambda: device_of(Slow()), id="device"),
        pytest.param(lambda: address_of(Slow()), id="address"),
        pytest.param(lambda: addresses_of([Slow()]), id="addresses"),
        pytest.param(lambda: size_of(Slow()), id="size"),
        pytest.param(lambda: wants_gradient(Slow()), id="wants gradient"),
        pytest.param(lambda: weights._grad_size(Slow()), id="gradient"),
    ],
)
def test_what_a_signal_handler_raises_while_a_tensor_is_asked_is_the_programs(
    asks: Callable[[], object],
) -> None:
    def times_up(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, times_up)
    try:
        with pytest.raises(TooLong):
            asks()
    finally:
        signal.signal(signal.SIGALRM, before)
