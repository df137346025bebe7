"""Training scripts as others write them: the list that is run with and without the agent, one line each.

The scripts are in ``e2e/training_scripts``; what they have in common is in its ``witness.py``. A new one is a
file there and a line here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from harmless_runs import SCRIPTS, TORCHRUN

ALL_WARNINGS: Final = ("-W", "always")


@dataclass(frozen=True, slots=True)
class Case:
    """A training script and how it is started.

    Attributes:
        line: name of the script and its arguments.
        how: ``script``; ``module`` for ``python -m``; ``text`` for ``python -c``.
        flags: of the interpreter; every warning is shown unless they say otherwise.
        ranks: processes below torchrun; 0 for none.
        returncode: how it ends.
        testifies: the script writes down what it knows of its memory, and the recording is held against it.
        unknown: sizes in bytes of blocks that torch's C++ holds then, where no Python object shows them.
        is_long: left to ``make test-long``.
        fails: why it does not behave alike yet.
    """

    line: str
    how: str = "script"
    flags: tuple[str, ...] = ALL_WARNINGS
    ranks: int = 0
    returncode: int = 0
    testifies: bool = True
    unknown: tuple[int, ...] = ()
    is_long: bool = False
    fails: str = ""

    def command(self) -> list[str]:
        """What is run, in the scripts' folder."""
        name, *arguments = self.line.split()
        path = SCRIPTS / f"{name}.py"
        if self.ranks:
            return [*TORCHRUN, "--nproc-per-node", str(self.ranks), str(path), *arguments]
        match self.how:
            case "module":
                rest = ["-m", name]
            case "text":
                rest = ["-c", path.read_text()]
            case _:
                rest = [str(path)]
        return [sys.executable, *self.flags, *rest, *arguments]

    def __str__(self) -> str:
        extra = [] if self.how == "script" else [self.how]
        extra += [] if self.flags is ALL_WARNINGS else [" ".join(self.flags)]
        return ", ".join([self.line, *extra])


ERRORS: Final = ("-W", "error")

CASES: Final = (
    Case("mlp"),
    Case("mlp", flags=ERRORS, is_long=True),
    Case("mlp", flags=("-X", "dev"), is_long=True),
    Case("mlp", flags=("-OO", "-B", "-s"), is_long=True),
    Case("mlp", how="module", is_long=True),
    Case("mlp", how="text", is_long=True),
    Case("cnn", is_long=True),
    Case("gpt"),
    Case("lstm_cell", is_long=True),
    Case("packed_rnn", is_long=True),
    Case("gan", is_long=True),
    Case("lbfgs", is_long=True),
    Case("mixed_precision", is_long=True),
    Case("traced before check"),
    Case("traced before uncheck", is_long=True),
    Case("traced after check", is_long=True),
    Case("traced after uncheck", is_long=True),
    # Code kept by TorchScript's reader; its size depends on the paths of the script and of torch.
    Case("scripted", is_long=True, unknown=(411, *range(600, 676))),
    Case("exported strict", is_long=True),
    Case("exported loose", is_long=True),
    Case("onnx_graph", is_long=True),
    Case("symbolic", is_long=True),
    Case("functional", is_long=True),
    Case("checkpointed reentrant"),
    Case("checkpointed not", is_long=True),
    Case("ddp", ranks=2, is_long=True, unknown=(24, 4660)),  # the reducer's bucket, and what it saw used
    Case("fsdp2", ranks=2, is_long=True),
    Case("meshes", ranks=2),
    Case("pipelined", ranks=2, is_long=True),
    Case("quantized", testifies=False, is_long=True),
    Case("sparse", is_long=True),
    Case("own_function", is_long=True),
    Case("own_hooks", is_long=True),
    Case("modes"),
    Case("subclass", testifies=False, is_long=True),
    Case("fake"),
    Case("lazy", is_long=True),
    Case("parametrized", is_long=True),
    Case("averaged", is_long=True),
    Case("threads", is_long=True),
    Case("cprofiled", testifies=False, is_long=True),
    Case("stacks_profiled", testifies=False, is_long=True),
    Case("tracemalloced", testifies=False, is_long=True),
    Case("raises_in_backward", testifies=False, returncode=1),
    Case("async_driven", is_long=True),
    Case("signalled", returncode=-15),
    Case("interrupted", returncode=-2, is_long=True),
    Case("traced_by_python", testifies=False, is_long=True),
    Case("weak", is_long=True),
    Case("saved", is_long=True),
    Case("copies", testifies=False, is_long=True),
    Case("own_optimizer"),
    Case("plain_tensors", is_long=True),
    Case("odd_modules"),
)
