"""The agent's last work is done, once, although Ctrl-C comes at its first instruction; nothing is shown."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from rankmem_agent.preload.interrupts import interrupts_put_off

SCRIPT = """
import _thread, atexit, signal
from rankmem_agent.preload.interrupts import interrupts_put_off, when_the_program_ends
signal.signal(signal.SIGINT, signal.default_int_handler)
done = []
num_interrupts = {num_interrupts}

def work():
    global num_interrupts
    if num_interrupts > 1:  # between the first instruction and the moment from which they are put off
        num_interrupts -= 1
        _thread.interrupt_main()
    with interrupts_put_off():
        if not done:
            done.append(True)

atexit.register(lambda: print(done, flush=True))
when_the_program_ends(work)
if num_interrupts:
    atexit.register(_thread.interrupt_main)  # called just before, and nothing of Python's in between
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
        with interrupts_put_off():
            signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.1)

    asyncio.run(listen())
    assert heard == [True]


def test_an_interrupt_is_the_users_at_the_end_of_the_block() -> None:
    done = []

    def work() -> None:
        with interrupts_put_off():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]
