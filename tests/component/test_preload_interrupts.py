"""Signals amid the agent's work are the program's after it. Its last work is done, once, although Ctrl-C
comes at its first instruction; nothing is shown."""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import faulthandler
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankmem_agent.preload import process_kind
from rankmem_agent.preload.rank_detection import DetectedRank
from rankmem_agent.signals import signals_put_off

SCRIPT = """
import _thread, atexit, signal
from rankmem_agent.preload.interrupts import when_the_program_ends
from rankmem_agent.signals import signals_put_off
signal.signal(signal.SIGINT, signal.default_int_handler)
done = []
num_interrupts = {num_interrupts}

def work():
    global num_interrupts
    if num_interrupts > 1:  # between the first instruction and the moment from which they are put off
        num_interrupts -= 1
        _thread.interrupt_main()
    with signals_put_off():
        if not done:
            done.append(True)

atexit.register(lambda: print(done, flush=True))
when_the_program_ends(work)
if num_interrupts:
    atexit.register(_thread.interrupt_main)  # called just before, and nothing of Python's in between
"""


FORKS = """
import os, signal, threading
from rankmem_agent.signals import signals_put_off

def times_up(number, frame):
    pass

def fork():
    child = os.fork()
    if child == 0:
        print("child", signal.getsignal(signal.SIGALRM) is times_up, flush=True)
        os._exit(0)
    os.waitpid(child, 0)

signal.signal(signal.SIGALRM, times_up)
thread = threading.Thread(target=fork)
with signals_put_off():
    thread.start()
    thread.join()
print("parent", signal.getsignal(signal.SIGALRM) is times_up)
"""


@pytest.mark.parametrize("num_interrupts", [0, 1, 2, 3])
def test_the_last_work_is_done_whatever_interrupts_its_beginning(num_interrupts: int) -> None:
    code = SCRIPT.replace("{num_interrupts}", str(num_interrupts))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[True]\n", "")


def test_a_loop_of_asyncio_hears_of_an_interrupt_once() -> None:
    heard = []

    async def listen() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: heard.append(True))
        with signals_put_off():
            signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.1)

    asyncio.run(listen())
    assert heard == [True]


def test_an_interrupt_is_the_users_at_the_end_of_the_block() -> None:
    done = []

    def work() -> None:
        with signals_put_off():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]


def flags_of(number: int) -> bytes:
    """What ``signal.siginterrupt()`` sets, of glibc's ``struct sigaction``."""
    action = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).sigaction(number, None, action)
    return bytes(action)[136:140]


class TooLong(Exception):
    """What the program raises when its time is up."""


def times_up(number: int, frame: object) -> None:
    raise TooLong


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, times_up)
    signal.siginterrupt(signal.SIGALRM, False)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("handled")
def test_every_handler_of_the_program_waits_and_is_as_before() -> None:
    flags = flags_of(signal.SIGALRM)
    done = []

    def work() -> None:
        with signals_put_off():
            signal.raise_signal(signal.SIGALRM)
            done.append(True)

    with pytest.raises(TooLong):
        work()
    assert done == [True]
    assert signal.getsignal(signal.SIGALRM) is times_up
    assert flags_of(signal.SIGALRM) == flags


@pytest.mark.usefixtures("handled")
def test_each_of_several_handlers_is_called_whatever_another_raises() -> None:
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(True))
    try:
        with pytest.raises(TooLong), signals_put_off():
            list(map(signal.raise_signal, (signal.SIGALRM, signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [True]


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("attach", [process_kind._attach, process_kind.attach_in_time])
def test_what_a_handler_raises_while_the_agent_attaches_is_the_programs(
    attach: Callable[[DetectedRank], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    attached = []

    def attach_by_kind(detected: DetectedRank) -> None:
        signal.raise_signal(signal.SIGALRM)
        attached.append(detected.rank)

    monkeypatch.setattr(process_kind, "_attach_by_kind", attach_by_kind)
    with pytest.raises(TooLong):
        attach(DetectedRank(rank=3))
    assert attached == [3]
    assert capsys.readouterr().err == ""


def test_a_child_that_another_thread_forks_meanwhile_has_the_programs_handlers() -> None:
    # In a process of its own: in this one other libraries' threads and hooks may be in a fork's way.
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "child True\nparent True\n", "")


@pytest.mark.usefixtures("handled")
def test_what_a_c_library_has_put_below_the_programs_handler_has_its_signals_at_once(tmp_path: Path) -> None:
    with open(tmp_path / "stacks", "w+") as file:
        faulthandler.register(signal.SIGALRM, file, all_threads=False)
        try:
            with signals_put_off():
                signal.raise_signal(signal.SIGALRM)
        finally:
            faulthandler.unregister(signal.SIGALRM)
        file.seek(0)
        assert file.read().startswith("Stack")


@pytest.mark.usefixtures("handled")
def test_the_flags_of_siginterrupt_hold_meanwhile() -> None:
    flags = flags_of(signal.SIGALRM)
    with signals_put_off():
        assert flags_of(signal.SIGALRM) == flags


@pytest.mark.usefixtures("handled")
def test_a_handler_that_the_program_sets_meanwhile_remains() -> None:
    heard = []
    with signals_put_off():  # a finalizer of its own may run here
        signal.signal(signal.SIGALRM, lambda *_: heard.append(True))
    signal.raise_signal(signal.SIGALRM)
    assert heard == [True]


def test_a_handler_that_is_for_one_signal_has_one() -> None:
    """The first Ctrl-C ends the work in order, the second is somebody else's."""
    heard = []

    def first(*_: object) -> None:
        heard.append("first")
        signal.signal(signal.SIGUSR1, lambda *_: heard.append("second"))

    before = signal.signal(signal.SIGUSR1, first)
    try:
        with signals_put_off():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == ["first", "second"]


def test_a_handler_that_resets_itself_leaves_the_second_signal_to_the_system() -> None:
    script = """
import signal
from rankmem_agent.signals import signals_put_off
signal.signal(signal.SIGUSR1, lambda *_: signal.signal(signal.SIGUSR1, signal.SIG_DFL))
with signals_put_off():
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGUSR1


@pytest.mark.usefixtures("handled")
def test_no_other_thread_is_let_run_before_our_work() -> None:
    """One that computes would keep the GIL for 5 ms, each time."""
    may_run, ran = threading.Lock(), []
    may_run.acquire()
    thread = threading.Thread(target=lambda: may_run.acquire() and ran.append(True))
    thread.start()
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(5.0)
        may_run.release()
        for _ in range(200):
            with signals_put_off():
                pass
        assert ran == []
    finally:
        sys.setswitchinterval(before)
        thread.join()


def test_a_thread_of_torchs_is_not_made_one_of_pythons() -> None:
    entered = threading.Event()

    def work() -> None:
        with signals_put_off():
            entered.set()

    before = threading.enumerate()
    _thread.start_new_thread(work, ())
    assert entered.wait(60)
    assert threading.enumerate() == before


def test_where_threading_takes_another_thread_for_the_main_one_nothing_is_put_off() -> None:
    """A program that embeds Python and imports threading in a thread of its own."""
    script = """
import _thread, sys
assert "threading" not in sys.modules
over = _thread.allocate_lock()
over.acquire()
def work():
    try:
        from rankmem_agent.signals import signals_put_off
        with signals_put_off():
            print("worked")
    finally:
        over.release()
_thread.start_new_thread(work, ())
over.acquire()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "worked\n", done.stderr
