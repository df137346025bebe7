"""What the agent wraps is called, returns and raises as without it."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import pytest

from rankmem_agent.hooks.wrapping import Call, wrapped


def test_no_name_of_a_parameter_is_taken_from_the_genuine_function() -> None:
    def genuine(self: int, mesh: int, *, genuine: int, call: int, before: int, after: int, error: int) -> int:
        return self + mesh + genuine + call + before + after + error

    calls: list[tuple[Call, int]] = []
    around = wrapped(genuine, after=lambda call, result: calls.append((call, result)))
    names = dict.fromkeys(inspect.signature(genuine).parameters, 1)
    assert around(**names) == 7
    assert calls == [(Call((), names), 7)]
    assert inspect.signature(around) == inspect.signature(genuine)


def test_a_traceback_through_a_wrapped_function_has_no_frame_of_ours() -> None:
    def genuine(*args: Any) -> None:
        raise ValueError(*args)

    told: list[Call] = []
    around = wrapped(genuine, before=told.append, after=lambda *_: pytest.fail("it raised"))
    with pytest.raises(ValueError, match="why") as raised:
        around("why")
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames == ["test_a_traceback_through_a_wrapped_function_has_no_frame_of_ours", "genuine"]
    assert told == [Call(("why",), {})]
