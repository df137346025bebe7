"""The demo's training command: torchrun, as a user would start it.

Stage: ``rankmem demo``, before the job. Imports no torch: the command does.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from rankmem_protos.errors import Code, RankmemError

SCRIPT = Path(__file__).with_name("demo_train.py")


def demo_command(*, ranks: int, steps: int) -> tuple[str, ...]:
    """The command line of the training.

    Raises:
        RankmemError: UNSUPPORTED without torch.
    """
    if find_spec("torch") is None:
        raise RankmemError(
            Code.UNSUPPORTED, f"{sys.executable} has no torch", "pip install torch, then rankmem demo"
        )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return (*torchrun, str(SCRIPT), f"--steps={steps}")


def demo_environment() -> dict[str, str]:
    """One thread for each rank, set explicitly: torchrun would otherwise print a four-line warning."""
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
