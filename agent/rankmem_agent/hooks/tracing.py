"""Whether the program runs, or is only being traced: when the hooks have to keep silent.

Stage: trainer; asked by every hook, on whatever thread it runs. Comes in: torch's own thread-local state (2.6
to 2.13). Goes out: True or False. It runs no operator, and the rest of the agent asks nothing else.

Two questions, since two things can go wrong:

- **Traced.** Under Dynamo (``torch.compile``, strict ``torch.export``) a foreign call breaks the graph. Under
  ``torch.jit.trace``, ``torch.onnx.export``, ``make_fx``, ``torch.fx`` and ``FakeTensorMode`` reading a shape
  may become a node of the graph, and tensors may have no memory. What happens is no part of the training.
- **Hidden.** Inside a transform of functorch (``grad``, ``vmap``) operators run and memory is used, but
  parameters are wrapped and have no address. Modules may be named there, tensors may not be asked.

What was missed is made up for: a module is taken as seen only once its tensors could be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Question = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """The questions, as functions without arguments."""

    by_dynamo: Question
    """Dynamo traces. For hooks that touch no tensor and are called too often for the whole question."""
    is_traced: Question
    """The program is traced, not run."""
    hides_tensors: Question
    """The program is traced, or tensors are wrapped by a transform of functorch."""


def tracing_of(torch: Any) -> Tracing:
    """The questions for the torch that is loaded.

    The functions begin with the question that Dynamo answers itself when it traces through them, so that it
    reads no further. Measured: 0.02 us for ``by_dynamo``, 0.2 us for ``hides_tensors``.
    """
    by_dynamo: Question = torch.compiler.is_dynamo_compiling
    is_compiling: Question = torch.compiler.is_compiling
    jit_state, num_modes = torch._C._get_tracing_state, torch._C._len_torch_dispatch_stack
    is_fx_tracing: Question = (  # the older name warns where there is a newer one (2.9)
        getattr(torch.fx._symbolic_trace, "is_fx_symbolic_tracing", None)
        or torch.fx._symbolic_trace.is_fx_tracing
    )
    innermost_transform = torch._C._functorch.peek_interpreter_stack
    mode_of, keys = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
    tracing_modes = (keys.FAKE, keys.PROXY, keys.FUNCTIONAL)

    def is_traced() -> bool:
        if is_compiling() or jit_state() is not None or is_fx_tracing():
            return True
        # A mode of the user's own traces nothing; torch keeps those that trace in slots of their own.
        return num_modes() > 0 and any(mode_of(key) is not None for key in tracing_modes)

    def hides_tensors() -> bool:
        return is_traced() or innermost_transform() is not None

    return Tracing(by_dynamo=by_dynamo, is_traced=is_traced, hides_tensors=hides_tensors)
