"""Which storages the hooks call parameters, gradients, optimizer state and buffers."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from hook_recorder import Recorded, step_hooks
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.tags import Tags
from rankmem_agent.spool.layout import Category, Kind

PARAMETER, GRADIENT, STATE = Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE


@pytest.fixture
def made() -> Iterator[tuple[Recorded, Tags, Guard]]:
    recorded, guard = Recorded(), Guard(0)
    tags = Tags(recorded, torch.compiler.is_compiling, guard)
    handles = [*tags.install(), *step_hooks(recorded, guard, tags=tags).install()]
    yield recorded, tags, guard
    for handle in handles:
        handle.remove()
    assert guard.failures == 0


@pytest.fixture
def recorded(made: tuple[Recorded, Tags, Guard]) -> Recorded:
    return made[0]


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def _backward(model: nn.Module) -> None:
    model(torch.ones(3, 4)).sum().backward()


def _addresses(recorded: Recorded, category: Category, since: int = 0) -> list[int]:
    return [address for kind, address, _ in recorded.tags()[since:] if kind is category]


def test_parameters_are_tagged_when_they_are_registered(recorded: Recorded) -> None:
    model = _model()
    assert _addresses(recorded, PARAMETER) == [p.data_ptr() for p in model.parameters()]
    assert [name for _, _, name in recorded.tags()] == ["Linear.weight", "Linear.bias"] * 2
    sizes = [fields["size_bytes"] for kind, fields in recorded.records if kind is Kind.TAG]
    assert sizes == [4 * p.numel() for p in model.parameters()]


def test_gradients_are_tagged_before_each_step_by_the_names_of_their_parameters(recorded: Recorded) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        _backward(model)
        gradients = [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
        before = len(recorded.tags())
        optimizer.step()
        assert _addresses(recorded, GRADIENT, before) == gradients
        optimizer.zero_grad()
    names = [name for kind, _, name in recorded.tags() if kind is GRADIENT]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"] * 2


def test_a_parameter_without_a_gradient_has_no_tag_of_one(recorded: Recorded) -> None:
    model = _model()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert _addresses(recorded, GRADIENT) == []


def test_parameters_that_moved_are_tagged_again_before_the_next_step(recorded: Recorded) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    before = len(recorded.tags())
    optimizer.step()
    assert len(recorded.tags()) == before
    model[0].double()
    optimizer.step()
    assert _addresses(recorded, PARAMETER, before) == [p.data_ptr() for p in model[0].parameters()]


def test_a_tree_is_tagged_where_it_is_with_its_frozen_parameters_marked(
    made: tuple[Recorded, Tags, Guard],
) -> None:
    recorded, tags, _ = made
    model = _model().double()
    model[0].requires_grad_(False)
    before = len(recorded.records)
    tags.tree(model)
    told = [fields for kind, fields in recorded.records[before:] if kind is Kind.TAG]
    assert [fields["address"] for fields in told] == [p.data_ptr() for p in model.parameters()]
    assert [fields["qualifier"] for fields in told] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, foreach=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        torch.optim.Adagrad,
        torch.optim.RMSprop,
    ],
)
def test_optimizer_state_is_tagged_after_the_first_step_and_not_again(
    recorded: Recorded, make: Callable[..., torch.optim.Optimizer]
) -> None:
    model = _model()
    optimizer = make(model.parameters())
    _backward(model)
    optimizer.step()
    state = [t.data_ptr() for values in optimizer.state.values() for t in values.values() if t is not None]
    assert state
    assert sorted(_addresses(recorded, STATE)) == sorted(state)
    before = len(recorded.tags())
    optimizer.step()
    assert _addresses(recorded, STATE, before) == []


def test_state_that_was_loaded_is_tagged_again(recorded: Recorded) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    _backward(model)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    before = len(recorded.tags())
    optimizer.step()
    moments = [values["exp_avg"].data_ptr() for values in optimizer.state.values()]
    assert set(moments) <= set(_addresses(recorded, STATE, before))


def test_tensors_in_lists_of_a_state_are_found(recorded: Recorded) -> None:
    model = _model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    (state,) = optimizer.state.values()
    assert {each.data_ptr() for each in state["old_dirs"]} <= set(_addresses(recorded, STATE))


def test_a_buffer_that_nobody_writes_to_becomes_input_at_the_second_step(recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    model.register_buffer("mask", torch.ones(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_mean.data_ptr() in _addresses(recorded, Category.UNKNOWN)
    for step in range(3):
        _backward(model)
        assert _addresses(recorded, Category.INPUT) == (
            [] if step < 2 else [model.get_buffer("mask").data_ptr()]
        )
        optimizer.step()


def test_parameters_added_to_an_optimizer_are_followed(recorded: Recorded) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    optimizer.step()
    optimizer.add_param_group({"params": list(model[2].parameters())})
    _backward(model)
    before = len(recorded.tags())
    optimizer.step()
    assert len(_addresses(recorded, GRADIENT, before)) == 4


def test_of_a_sparse_gradient_the_values_are_tagged(recorded: Recorded) -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    table(torch.tensor([1, 2])).sum().backward()
    assert table.weight.grad is not None
    values = table.weight.grad._values().data_ptr()
    optimizer.step()
    assert _addresses(recorded, GRADIENT) == [values]
    assert _addresses(recorded, STATE)


def test_a_copied_model_is_tagged_when_it_becomes_a_part_of_another(recorded: Recorded) -> None:
    copied = copy.deepcopy(_model())
    before = len(recorded.tags())
    holder = nn.Module()
    holder.average = copied
    assert _addresses(recorded, PARAMETER, before) == [p.data_ptr() for p in copied.parameters()]
    again = len(recorded.tags())
    nn.Module().average = copied
    assert len(recorded.tags()) == again


def test_modules_on_the_meta_device_have_no_address(recorded: Recorded) -> None:
    nn.Linear(4, 4, device="meta")
    assert recorded.tags() == []


def test_nothing_of_the_users_is_kept_alive(made: tuple[Recorded, Tags, Guard]) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    _backward(model)
    optimizer.step()
    gone = [weakref.ref(model), weakref.ref(next(model.parameters())), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


def test_after_stop_nothing_is_tagged(made: tuple[Recorded, Tags, Guard]) -> None:
    recorded, tags, _ = made
    tags.stop()
    _model()
    assert recorded.tags() == []


def test_a_failure_of_ours_is_said_once_and_never_reaches_the_user(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, guard = Recorded(), Guard(0)
    tags = Tags(recorded, torch.compiler.is_compiling, guard)

    def broken(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(recorded, "record", broken)
    handles = tags.install()
    try:
        _model()
    finally:
        for handle in handles:
            handle.remove()
    assert guard.failures == 1, "the first one switches the set off"
    assert capsys.readouterr().err.count("\n") == 1
