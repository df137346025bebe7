"""What the hooks ask of whatever records: the native tap, its fallback, or a test's list.

Stage: trainer; the seam between hooks and tap. Types only.
"""

from __future__ import annotations

from array import array
from typing import Literal, Protocol

from rankmem_agent.hooks.module_frames import ModuleReader
from rankmem_agent.spool.layout import Category, Kind


class ModuleSlot(Protocol):
    """Where a thread's module stands: the tap reads it when a call begins."""

    def __setitem__(self, index: Literal[0], module_string_id: int, /) -> None:
        """Item 0 is the string id of the path; 0 for none."""


class Recorder(Protocol):
    """The part of the tap that hooks use; see ``docs/internals.md``. None of it raises or blocks."""

    def intern(self, text: str) -> int:
        """The string's id in the spool; 0 if it could not be written."""

    def record(
        self,
        kind: Kind,
        *,
        action: int = 0,
        device_type: int = 0,
        device_index: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        d: int = 0,
        e: int = 0,
    ) -> None:
        """Appends a record; the fields are those of ``spool.layout.Kind``."""

    def tag(
        self,
        category: Category,
        device_type: int,
        device_index: int,
        addresses: array[int],
        sizes: array[int],
        names: array[int],
    ) -> None:
        """Appends a TAG record (c=1) for each address that is not 0.

        Args:
            addresses, sizes: array("Q"); names: array("I"), string ids; all of one length.
        """

    def set_module(self, module_string_id: int) -> None:
        """The module that this thread's next calls run in; 0 for none."""

    def module_slot(self) -> ModuleSlot:
        """The calling thread's own slot, valid in this thread until it ends: storing into it does what
        ``set_module`` does, at a tenth of the cost."""

    def module_reader(self) -> ModuleReader | None:
        """What reads modules from Python frames; None if only hooks can tell them."""

    def set_phase(self, phase: int) -> None:
        """The process' phase from now on: a ``spool.layout.Phase``, or IN_CLOSURE."""

    def set_step(self, step: int) -> None:
        """The number of the step that has begun."""
