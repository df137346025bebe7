"""The interface between the hooks and a recorder: the native tap, its fallback, or a test's list.

Stage: trainer; the seam between hooks and tap. Types only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

from rankmem_agent.hooks.module_frames import ModuleReader
from rankmem_agent.spool.layout import Category
from rankmem_agent.spool.records import RecordWriter

FOUND_OTHER: Final = 1
"""A finding of :class:`StepCalls`, one bit each: the optimizer has other parameters than the plan; nothing
was tagged."""
FOUND_ODD: Final = 2
"""Some parameters or gradients are left to Python."""
FOUND_LOOK: Final = 4
"""A parameter has moved, a gradient is the first of its parameter, or 64 steps are over."""
FOUND_STATE: Final = 8
"""The optimizer's state is new."""
FOUND_SECOND: Final = 16
"""A second has gone by since this was found last."""
ODD_PARAMETER: Final = 1
"""Left to Python of a parameter: itself and its gradient."""
ODD_GRADIENT: Final = 2
"""Its gradient alone, in this step."""


class Removable(Protocol):
    """torch's ``RemovableHandle``."""

    def remove(self) -> None:
        """Unregisters the hook."""


class ModuleSlot(Protocol):
    """Where a thread's module stands: the tap reads it when a call begins."""

    def __setitem__(self, index: Literal[0], module_string_id: int, /) -> None:
        """Item 0 is the string id of the path; 0 for none."""


class StepCalls(Protocol):
    """The work around ``optimizer.step()`` in one native call each. Attributes, for the cost of a call."""

    begin: Callable[[int, Any, int], int]
    """Before the step: (plan, param_groups, phase); sets the phase, tags what moved and all gradients."""
    end: Callable[[int, Any, bool, int, int], int]
    """After it: (plan, state, whether a training step ends here, its number, its name's string id)."""
    has_new_state: Callable[[int, Any], int]
    """(plan, state): whether the state is new since the last time that it was found so."""
    free_plan: Callable[[int], None]
    """Gives the plan's memory back."""

    def make_plan(self, parameters: Sequence[Any], names: array[int], odd: array[int]) -> int:
        """A plan of an optimizer's parameters in their order; 0 where there can be none.

        Args:
            names: array("I"), string ids. odd: array("B"), kept by the caller as long as the plan: ODD_* bits
                of what is left to Python, set here and at each step.
        """


class Recorder(RecordWriter, Protocol):
    """The part of the tap that hooks use; see ``docs/internals.md``. None of it raises or blocks."""

    def tag(
        self,
        category: Category,
        device_type: int,
        device_index: int,
        addresses: array[int],
        sizes: array[int],
        names: array[int],
    ) -> None:
        """Appends a TAG record (``since_allocation``) for each address that is not 0.

        Args:
            addresses, sizes: array("Q"); names: array("I"), string ids; all of one length.
        """

    def set_module(self, module_string_id: int) -> None:
        """The module that this thread's next calls run in; 0 for none."""

    def module_slot(self) -> ModuleSlot:
        """The calling thread's own slot, valid in this thread until it ends: storing into it does what
        ``set_module`` does, at a tenth of the cost."""

    def module_reader(self) -> ModuleReader | None:
        """The reader of modules from Python frames; None if only hooks can see them."""

    def step_calls(self) -> StepCalls | None:
        """The native calls around an optimizer's step; None where Python has to do the work."""

    def set_phase(self, phase: int) -> None:
        """The process' phase from now on: a ``spool.layout.Phase``, or IN_CLOSURE."""

    def set_step(self, step: int, *, by_call: bool = False) -> None:
        """The number of the step that has begun."""
