"""Calls that tell the allocator what to do become markers, and torch's own functions do what they did."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from hook_recorder import Recorded
from rankmem_agent.hooks import user_api as told
from rankmem_agent.hooks.allocator_calls import EMPTY_CACHE, SET_FRACTION, AllocatorCalls
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.spool.layout import Kind, MarkerKind


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    told.connect(made, Steps(made), torch.compiler.is_compiling)
    yield made
    told.disconnect()


def a_module(recorded: Recorded) -> Any:
    """One that has functions of the names of torch's, which see what was recorded before them."""
    module: Any = ModuleType("cuda")
    module.seen = []

    def empty_cache() -> str:
        module.seen.append(len(recorded.records))
        return "emptied"

    def set_per_process_memory_fraction(fraction: float, device: object = None) -> None:
        if fraction > 1:
            raise ValueError("fraction")

    module.empty_cache, module.set_per_process_memory_fraction = empty_cache, set_per_process_memory_fraction
    AllocatorCalls(Guard(0)).install(module, ModuleType("memory"))
    return module


def test_a_marker_is_around_each_call_and_what_it_returns_is_returned(recorded: Recorded) -> None:
    module = a_module(recorded)
    assert module.empty_cache() == "emptied"
    module.set_per_process_memory_fraction(0.5, 0)
    module.set_per_process_memory_fraction(fraction=0.25)
    with pytest.raises(ValueError, match="fraction"):
        module.set_per_process_memory_fraction(2.0)
    assert module.seen == [1], "the begin stands before the call, the end after it"
    kinds = [kind for kind, _ in recorded.records]
    assert kinds == [Kind.MARKER_BEGIN, Kind.MARKER_END] * 4
    begins = [fields for kind, fields in recorded.records if kind is Kind.MARKER_BEGIN]
    ends = [fields["marker_id"] for kind, fields in recorded.records if kind is Kind.MARKER_END]
    assert [recorded.strings[fields["name"]] for fields in begins] == [
        EMPTY_CACHE, f"{SET_FRACTION} 0.5", f"{SET_FRACTION} 0.25", f"{SET_FRACTION} 2.0",
    ]  # fmt: skip
    assert {fields["marker_kind"] for fields in begins} == {MarkerKind.ALLOCATOR}
    assert ends == [fields["marker_id"] for fields in begins]


def test_torch_has_the_functions_that_are_replaced() -> None:
    for module in (torch.cuda, torch.cuda.memory):
        assert callable(module.empty_cache)
        assert callable(module.set_per_process_memory_fraction)


def test_without_a_recording_the_calls_are_unaffected(recorded: Recorded) -> None:
    module = a_module(recorded)
    told.disconnect()
    assert module.empty_cache() == "emptied"
    assert recorded.records == []
