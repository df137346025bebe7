"""annotate() and step(): nothing without an agent, markers and steps with one."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

import rankmem_agent
from hook_recorder import Recorded
from rankmem_agent.hooks import user_api as told
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.parallel import Parallel
from rankmem_agent.hooks.steps import Optimizer, Steps
from rankmem_agent.spool.layout import BY_USER, Category, Kind, MarkerKind


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    told.connect(made, Steps(made), torch.compiler.is_compiling)
    yield made
    told.disconnect()


def test_without_an_agent_they_do_nothing(recorded: Recorded) -> None:
    told.disconnect()
    with rankmem_agent.annotate("loss"):
        rankmem_agent.step()
        rankmem_agent.parallel(dp=1)
    assert recorded.records == []


def test_a_told_range_never_has_the_id_of_one_of_torchs(recorded: Recorded) -> None:
    with rankmem_agent.annotate("range"):
        pass
    assert recorded.records[0][1]["marker_id"] >= told.FIRST_MARKER > 10**12  # the tap counts from 1


def test_ranges_of_threads_have_ids_of_their_own(recorded: Recorded) -> None:
    def work() -> None:
        for _ in range(500):
            with rankmem_agent.annotate("range"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [fields["marker_id"] for kind, fields in recorded.records if kind is Kind.MARKER_BEGIN]
    assert len(set(ids)) == 2000


def test_told_coordinates_are_a_note_and_only_those_that_were_given(recorded: Recorded) -> None:
    parallel = Parallel(recorded, torch.compiler.is_compiling, Guard(0), {})
    steps = Steps(recorded)
    told.connect(recorded, steps, torch.compiler.is_compiling, parallel)
    rankmem_agent.parallel(dp=2, tp=0)
    ((kind, fields),) = recorded.records
    assert kind is Kind.NOTE
    assert json.loads(recorded.strings[fields["facts"]]) == {"rank": {"dp": 2, "tp": 0}}


def test_ranges_nest_and_close_even_when_they_raise(recorded: Recorded) -> None:
    with pytest.raises(ZeroDivisionError), rankmem_agent.annotate("outer"), rankmem_agent.annotate("inner"):
        _ = 1 / 0
    (begin_outer, outer), (begin_inner, inner), (end_inner, closed_inner), (end_outer, closed_outer) = (
        recorded.records
    )
    assert [begin_outer, begin_inner] == [Kind.MARKER_BEGIN] * 2
    assert [end_inner, end_outer] == [Kind.MARKER_END] * 2
    assert [recorded.strings[each["name"]] for each in (outer, inner)] == ["outer", "inner"]
    assert outer["marker_kind"] == MarkerKind.ANNOTATE
    assert (closed_inner["marker_id"], closed_outer["marker_id"]) == (inner["marker_id"], outer["marker_id"])
    assert inner["marker_id"] != outer["marker_id"]


def test_a_range_that_began_before_the_agent_left_is_not_an_error(recorded: Recorded) -> None:
    with rankmem_agent.annotate("range"):
        told.disconnect()
    assert [kind for kind, _ in recorded.records] == [Kind.MARKER_BEGIN]


def test_a_told_step_is_a_step_of_the_user(recorded: Recorded) -> None:
    rankmem_agent.step()
    assert recorded.steps() == [(0, "user")]


def test_at_a_told_step_the_weights_are_looked_at_before_it_counts(recorded: Recorded) -> None:
    seen: list[int] = []
    steps = Steps(recorded)
    told.connect(
        recorded, steps, torch.compiler.is_compiling, at_step=lambda: seen.append(len(recorded.steps()))
    )
    rankmem_agent.step()
    rankmem_agent.step()
    assert seen == [0, 1]


def test_inside_a_compiled_region_nothing_breaks_the_graph(recorded: Recorded) -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def loss(x: torch.Tensor) -> torch.Tensor:
        with rankmem_agent.annotate("loss"):
            return x.square().sum()

    assert loss(torch.ones(3)).item() == 3
    torch._dynamo.reset()


def test_a_tag_reaches_every_tensor_of_a_container_with_the_users_word(recorded: Recorded) -> None:
    class Layer:
        def __init__(self) -> None:
            self.keys, self.values = torch.zeros(4), torch.zeros(8)
            self.itself = self

    layers = [Layer(), Layer()]
    rankmem_agent.tag(
        {"layers": layers, "length": 3, "more": (torch.zeros(2), None)}, "kv_cache", name="cache"
    )
    kept = [each for layer in layers for each in (layer.keys, layer.values)]
    told_of = [fields for kind, fields in recorded.records if kind is Kind.TAG]
    assert [fields["address"] for fields in told_of][:4] == [each.data_ptr() for each in kept]
    assert [fields["size_bytes"] for fields in told_of] == [16, 32, 16, 32, 8]
    meant = {(f["category"], f["since_allocation"], f["qualifier"]) for f in told_of}
    assert meant == {(Category.KV_CACHE, 1, BY_USER)}
    assert {recorded.strings[fields["name"]] for fields in told_of} == {"cache"}


def test_a_category_that_there_is_not_is_an_error_with_and_without_an_agent() -> None:
    with pytest.raises(ValueError, match="no category 'cache'; there are unknown, input, "):
        rankmem_agent.tag(torch.zeros(1), "cache")


def test_what_cannot_be_read_is_not_told_and_raises_nothing(recorded: Recorded) -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            raise OSError(name)

    rankmem_agent.tag([Broken()], "input")
    rankmem_agent.tag(torch.zeros(2, device="meta"), "input")
    assert not recorded.records


def test_steps_that_are_left_to_calls_end_at_calls_alone_from_the_first_on() -> None:
    made = Recorded()
    steps = Steps(made)
    told.connect(made, steps, torch.compiler.is_compiling)
    try:
        told.leave_steps_to_calls()
        layer = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        assert not steps.ends(Optimizer(weakref.ref(optimizer), 0))
        assert [told.end_step(), told.end_step()] == [0, 1]
    finally:
        told.disconnect()
    assert told.end_step() is None
    assert told.spool_dir() is None
