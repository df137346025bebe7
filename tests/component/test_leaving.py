"""How a process that served ends although a call runs on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rankmem_aggregator.server.process_exit import CALLS

STUCK = f"""
import threading
from rankmem_aggregator.server import process_exit
process_exit.LAST_WAIT_S = 0.01
threading.Thread(target=threading.Event().wait, name="{CALLS}_0").start()
print("said before", flush=False)
raise SystemExit(process_exit.leave(3))
"""


def test_a_call_that_runs_on_keeps_no_process() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said before\n", "")


@pytest.mark.parametrize("code", [0, 1])
def test_where_no_call_runs_the_code_is_given_back(code: int) -> None:
    # Not in this process: a call that another test left behind would end it.
    given_back = f"from rankmem_aggregator.server.process_exit import leave; print(leave({code}))"
    ended = subprocess.run([sys.executable, "-c", given_back], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{code}\n", "")
