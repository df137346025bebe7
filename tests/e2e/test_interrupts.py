"""Ctrl-C at the worst moments: the user's terminal shows nothing of ours, and what was recorded is whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harmless_runs import TIMEOUT_S, preloaded, preloaded_env, script, spools


def test_an_interrupt_at_the_first_instruction_of_the_agent_s_last_work_is_silent_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    done = preloaded(script("interrupted_at_last_work.py"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (spool,) = spools(tmp_path)
    assert (spool.ended, spool.lost, spool.steps) == (True, 0, 1)


@pytest.mark.parametrize("drain_s", ["0", "60"])
def test_interrupts_while_the_agent_ends_are_silent(drain_s: str, tmp_path: Path) -> None:
    command = script("interrupted_at_exit.py")
    environment = preloaded_env(tmp_path) | {"RANKMEM_DRAIN_S": drain_s, "RANKMEM_SHIP_DRAIN_S": "5"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        deadline = time.monotonic() + TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
            time.sleep(0.002)
        stderr = process.stderr.read()
    assert "rankmem" not in stderr.replace(sys.prefix, "")  # torch's frames, in a clone of that name
    assert process.returncode == 0
    (spool,) = spools(tmp_path)
    assert (spool.ended, spool.lost, spool.steps) == (True, 0, 1)


def test_an_interrupt_while_torch_is_imported_ends_the_program_as_ever(tmp_path: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a job in the background
        "import sys, time; sys.stdout.write('ready\\n'); sys.stdout.flush(); "  # of a shell ignores it
        "import torch; print('imported', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=preloaded_env(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while not list((tmp_path / "spool").glob("*/candidate-*")):  # the agent has begun
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGINT
    assert out in ("", "imported\n")
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "rankmem: " not in err
    assert list((tmp_path / "spool").glob("*/*/")) == []
