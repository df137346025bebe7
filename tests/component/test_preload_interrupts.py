"""The agent's last work is done, once, although Ctrl-C comes at its first instruction; nothing is shown."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
