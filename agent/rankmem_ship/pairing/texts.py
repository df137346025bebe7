"""The meaning of a spool's names and stacks: whether a range is the user's own, whether a stack recomputes.

Stage: pairing; shipper process. In: string and stack ids; out: masks. The answers are functions of the texts
alone, so remembering them is no state: an id is looked at once, later by its place in an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from rankmem_ship.pairing.state import Array
from rankmem_ship.spool_reader.string_table import Frame, StringTable

_OPTIMIZERS_RANGE: Final = "Optimizer."
TORCHS_OWN_RANGES: Final = (
    _OPTIMIZERS_RANGE,  # step#AdamW.step, zero_grad#AdamW.zero_grad
    "ProfilerStep#",
    "enumerate(DataLoader)#",
    "DataParallel.",
    "DistributedDataParallel.",
    "FullyShardedDataParallel.",
    "FSDP::",
    "torch.distributed.",
    "torch::",
    "autograd::",
    "c10d::",
    "nccl:",
    "gloo:",
    "mpi:",
    "ucc:",
    "record_param_comms",
    "TorchDynamo ",
    "Torch-Compiled Region",
    "Pregraph bytecode",
    "CompiledFxGraph",
    "AOTDispatcher ",
    "Inductor ",
    "## ",  # inductor's graphs
)
"""How the names of ranges begin that torch (2.6 to 2.15) opens by itself through record_function. They are
rows of ``marker`` like others, and no annotations: they would hide the user's own around them."""


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


FACTORIES: Final = _aten(
    "arange bartlett_window blackman_window eye full hamming_window hann_window kaiser_window linspace"
    " logspace normal ones rand randint randn randperm range scalar_tensor tril_indices triu_indices zeros"
)
"""Operators that take no tensor, so that what they make depends on none."""

UNINITIALIZED: Final = _aten(
    "empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided resize_"
    " resize_as_"
)
"""Operators that leave the content open: buffers of the reducer, of FSDP, of the user."""

OPAQUE: Final = _aten(
    "__and__ __or__ __xor__ all allclose any argmax argmin argsort bincount bitwise_and bitwise_not"
    " bitwise_or bitwise_xor bucketize clone count_nonzero eq equal ge greater greater_equal gt histc"
    " isclose isfinite isin isinf isnan isneginf isposinf le less less_equal logical_and logical_not"
    " logical_or logical_xor lt multinomial ne nonzero nonzero_numpy nonzero_static not_equal one_hot"
    " searchsorted signbit"
)
"""Operators that never make an autograd node, so that making none proves nothing; and ``clone``, which
outside of forward copies weights (an average of them, the best so far) rather than data."""

BLANK: Final = _aten("full_like new_zeros zeros zeros_like")
"""Operators whose result is there to be written to. Made outside of modules it is as a rule no data: the
state of an optimizer, a cache, an average."""
_SNAPSHOT: Final = '"source": "snapshot"'
"""In the JSON of a DEVICE record: recorded by memory snapshots, which know nothing of autograd."""
_BACKWARD_ENTRY: Final = "_engine_run_backward"
"""torch.autograd.graph: what every backward() calls; frames nearer to the operator run within it."""
_MODULE_CALL: Final = ("torch/nn/modules/module.py", "_call_impl")
_REDUCER_MADE_IN: Final = (
    "torch/nn/parallel/distributed.py",
    ("DistributedDataParallel._ddp_init_helper", "DistributedDataParallel._pre_forward"),
)
"""Where DDP makes its reducer, and where the reducer orders its buckets anew (torch 2.6 to 2.13)."""
_DISTRIBUTED: Final = "/torch/distributed/"
_CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"
_CHECKPOINT_BACKWARD: Final = "CheckpointFunction.backward"
"""Reentrant checkpointing of torch, Megatron, DeepSpeed and fairscale alike."""


class Texts:
    """Answers about one spool's texts.

    Args:
        strings: the spool's strings, polled by the reader before the records that name them.
    """

    def __init__(self, strings: StringTable) -> None:
        text, stack = strings.text, strings.stack
        self.are_torchs_own = _asked_once(lambda name: (text(name) or "").startswith(TORCHS_OWN_RANGES))
        """Whether a range of that name is torch's, not the user's."""
        self.are_optimizers = _asked_once(lambda name: (text(name) or "").startswith(_OPTIMIZERS_RANGE))
        """Whether a range of that name is an optimizer's step() or zero_grad()."""
        self.are_factories = _asked_once(lambda name: text(name) in FACTORIES)
        """Whether what an operator of that name makes depends on no tensor."""
        self.are_uninitialized = _asked_once(lambda name: text(name) in UNINITIALIZED)
        """Whether an operator of that name leaves its result's content open."""
        self.are_opaque = _asked_once(lambda name: text(name) in OPAQUE)
        """Whether it proves nothing that an operator of that name made no autograd node."""
        self.are_blank = _asked_once(lambda name: text(name) in BLANK)
        """Whether what an operator of that name makes is there to be written to."""
        self.are_snapshots = _asked_once(lambda name: _SNAPSHOT in (text(name) or ""))
        """Of the JSON of devices: whether they are recorded without anything of autograd."""
        self.are_reducers = _asked_once(lambda stack_id: makes_reducer(stack(stack_id)))
        """Of uninitialized buffers: whether DistributedDataParallel's reducer makes them."""
        self.are_distributed = _asked_once(lambda stack_id: is_distributed(stack(stack_id)))
        """Whether torch.distributed itself makes a block: it copies weights to send them."""
        self.are_recomputing = _asked_once(lambda stack_id: runs_forward_again(stack(stack_id)))
        """Of calls that autograd's engine runs: whether their stack shows a forward; False for no stack."""


def runs_forward_again(frames: Sequence[Frame]) -> bool:
    """Whether a forward runs within backward, by the frames of the innermost backward, nearest first.

    On the autograd engine's own threads (CUDA) the frame that entered backward is not there, and no other
    foreign frame either.
    """
    for frame in frames:
        if frame.function.endswith(_BACKWARD_ENTRY):
            return False
        if frame.function.endswith(_MODULE_CALL[1]) and frame.file.endswith(_MODULE_CALL[0]):
            return True
        if frame.file.endswith(_CHECKPOINT_FILE) or frame.function.endswith(_CHECKPOINT_BACKWARD):
            return True
    return False


def makes_reducer(frames: Sequence[Frame]) -> bool:
    """Whether the innermost Python frame is one from which DDP's reducer, which is C++, allocates."""
    file, functions = _REDUCER_MADE_IN
    return bool(frames) and frames[0].file.endswith(file) and frames[0].function.endswith(functions)


def is_distributed(frames: Sequence[Frame]) -> bool:
    """Whether the innermost Python frame is one of torch.distributed's."""
    return bool(frames) and _DISTRIBUTED in frames[0].file


def _asked_once(ask: Callable[[int], bool]) -> Callable[[Array], Array]:
    """``ask`` for arrays of small numbers, asked once for each; 0 is no."""
    yes, asked = np.zeros(1, np.bool_), np.ones(1, np.bool_)

    def of(ids: Array) -> Array:
        nonlocal yes, asked
        if not len(ids):
            return np.zeros(0, np.bool_)
        missing = int(ids.max()) + 1 - len(yes)
        if missing > 0:
            more = np.zeros(max(missing, len(yes)), np.bool_)
            yes, asked = np.concatenate([yes, more]), np.concatenate([asked, more])
        for number in np.unique(ids[~asked[ids]]):
            yes[number] = ask(int(number))
            asked[number] = True
        answers: Array = yes[ids]
        return answers

    return of
