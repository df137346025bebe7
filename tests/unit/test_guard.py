"""The guard: what fails goes off alone, and is said once."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable

import pytest

from rankmem_agent.hooks.guard import Guard, PartGuard
from rankmem_agent.hooks.missing import fit_to_leave
from rankmem_agent.privacy import Privacy


def test_a_set_of_hooks_goes_off_alone_and_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Guard(2)
    off: list[str] = []
    guard.when_off(lambda happened: off.append("all"))
    guard.when_part_off(lambda part, happened: off.append(f"{part.part}: {happened}"))
    modules = guard.of("modules", lambda: off.append("stopped"))
    modules.failed(TypeError("odd"))
    modules.failed(TypeError("odd again"))
    assert off == ["stopped", "modules: TypeError: odd"]
    assert capsys.readouterr().err == (
        "rankmem: rank 2: modules are no longer recorded: TypeError: odd (try: rankmem doctor)\n"
    )


def test_the_whole_goes_off_with_its_reason() -> None:
    guard = Guard(0)
    off: list[str] = []
    guard.when_off(off.append)
    guard.failed(OSError("no\n room"))
    guard.failed(OSError("again"))
    assert off == ["OSError: no | room"]


def test_the_whole_goes_off_also_after_a_set_of_hooks_has(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Guard(0)
    off: list[str] = []
    guard.when_off(off.append)
    guard.of("modules", lambda: None).failed(TypeError("odd"))
    guard.failed(OSError("no room"))
    assert off == ["OSError: no room"]
    assert "the agent is off: OSError: no room" in capsys.readouterr().err
    assert guard.failures == 2


def test_a_switch_that_fails_reaches_nobody() -> None:
    guard = Guard(0)

    def broken(*_: object) -> None:
        raise RuntimeError("the switch")

    guard.when_off(broken)
    guard.when_part_off(broken)
    part = guard.of("steps", broken)
    assert isinstance(part, PartGuard)
    part.failed(ValueError("x"))
    guard.failed(ValueError("y"))


def test_standard_error_may_be_any_object_of_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyWrites:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def write(self, text: str) -> None:
            self.lines.append(text)

    stderr = OnlyWrites()  # as loggers have it, without flush
    monkeypatch.setattr(sys, "stderr", stderr)
    Guard(0).failed(OSError("no room"))
    assert stderr.lines == ["rankmem: rank 0: the agent is off: OSError: no room (try: rankmem doctor)\n"]


def test_what_happened_leaves_the_host_without_secrets_and_as_the_user_wants_paths() -> None:
    said = "OSError: /home/me/x with token=abc"
    mapped = Privacy(path_map=(("/home/me", "~"),))
    assert fit_to_leave(said, mapped) == "OSError: ~/x with token=***"
    assert fit_to_leave(said, Privacy(files=False)) == "OSError"


class TooLong(Exception):
    """What the program raises when its time is up."""


class Program:
    def times_up(self, number: int, frame: object) -> None:
        raise TooLong


def any_way(way: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(way)
    def wrapper(*arguments: object) -> None:
        way(*arguments)

    return wrapper


class Callables(Program):
    def __call__(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        raise TooLong


HANDLERS = [
    pytest.param(Program().times_up, id="method"),
    pytest.param(any_way(Program().times_up), id="decorated"),
    pytest.param(Callables(), id="object"),
    pytest.param(functools.partial(Program.times_up, Program()), id="partial"),
]


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_signal_handler_of_the_program_raises_amid_a_hook_is_raised(
    capsys: pytest.CaptureFixture[str], handler: Callable[..., None]
) -> None:
    guard = Guard(0).of("modules", lambda: None)
    before = signal.getsignal(signal.SIGALRM)
    try:
        for _ in range(2):
            signal.signal(signal.SIGALRM, handler)
            with pytest.raises(TooLong):
                hook(guard)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert capsys.readouterr().err.count("TooLong") == 1


def hook(guard: PartGuard) -> None:
    try:
        signal.raise_signal(signal.SIGALRM)
    except Exception as error:  # noqa: BLE001  as every hook
        guard.failed(error)


def test_what_a_signal_handler_raises_while_standard_error_takes_no_line_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Blocked:
        def write(self, text: str) -> None:
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(sys, "stderr", Blocked())
    before = signal.signal(signal.SIGALRM, Program().times_up)
    try:
        with pytest.raises(TooLong):
            Guard(0).report("a line")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_error_of_ours_is_not_raised_whatever_handlers_there_are() -> None:
    guard = Guard(0).of("modules", lambda: None)
    before = signal.signal(signal.SIGALRM, any_way(Program().times_up))

    @any_way
    def ours(*arguments: object) -> None:
        raise AttributeError("ours")

    try:
        ours(1, None)
    except AttributeError as error:
        guard.failed(error)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert signal.getsignal(signal.SIGALRM) is before
