"""The agent's start and end where something goes wrong in them; the whole of it runs in tests/e2e."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import optimizer

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.preload import process_kind
from rankmem_agent.preload.attach import Agent
from rankmem_agent.preload.rank_detection import DetectedRank


class Interrupted(BaseException):
    """What a signal's handler of the user's may raise."""


def _ending(end: Callable[[], None], did: list[str]) -> Any:
    """As much of an agent as its end asks for."""

    def does(what: str) -> Callable[[], None]:
        return lambda: did.append(what)

    return SimpleNamespace(
        _pid=os.getpid(),
        _guard=Guard(0),
        _candidate=SimpleNamespace(discard=does("discard"), is_published=False),
        _deciding=SimpleNamespace(is_over=False, end=end),
        _recording=SimpleNamespace(finish=does("finish")),
        _model_calls=SimpleNamespace(finish=does("calls")),
        _record_exit=lambda candidate: did.append("exit"),
        stop=does("stop"),
    )


@pytest.mark.parametrize("error", [Interrupted, OSError("no room")])
def test_whatever_is_raised_at_the_end_the_log_is_ended(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    did: list[str] = []

    def end() -> None:
        raise error

    with contextlib.suppress(Interrupted):  # what it is called by holds it back: see interrupts
        Agent.finish(_ending(end, did))
    assert did == ["calls", "finish", "stop", "discard"]
    assert ("no room" in capsys.readouterr().err) == isinstance(error, OSError)


def test_an_end_tells_how_before_it_ends_the_log() -> None:
    did: list[str] = []
    Agent.finish(_ending(lambda: did.append("decide"), did))
    assert did == ["calls", "decide", "exit", "finish", "stop", "discard"]


def test_whether_it_trains_is_seen_where_no_hook_can_be_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer, "_global_optimizer_post_hooks", OrderedDict())

    def changed(*_: object) -> None:
        raise AttributeError("torch has changed")

    stepped: list[int] = []
    agent: Any = SimpleNamespace(
        _guard=Guard(0), _stop_hooks=lambda: None, _install_hooks=changed, _torch=torch
    )
    deciding: Any = SimpleNamespace(stepped=lambda: stepped.append(1))
    Agent._install_all_hooks(agent, agent, deciding)
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], lr=0.1).step()
    assert stepped == [1]
    assert "steps, modules and categories are no longer recorded" in capsys.readouterr().err


def test_a_child_of_multiprocessing_that_cannot_attach_begins_its_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown() -> None:
        raise AttributeError("multiprocessing has changed")

    monkeypatch.setattr(process_kind, "kind_of_process", unknown)
    process_kind._attach(DetectedRank(rank=3))  # multiprocessing calls it
    assert "rankmem: rank 3: the agent is off: " in capsys.readouterr().err
