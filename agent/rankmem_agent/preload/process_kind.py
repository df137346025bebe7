"""How multiprocessing started this process, and so whether and when to attach.

Stage: trainer, right after the import of torch, and in multiprocessing's children once their work is
known. Comes in: the candidate's detected rank. Goes out: a call of
:func:`rankmem_agent.preload.attach.attach`, at once, later or not at all.

- A script: attached at once.
- A child that runs a function of the user's (``torch.multiprocessing.spawn``, ``multiprocessing.Process``):
  attached as it begins, since it may be a rank, and only its training shows that it is one.
- A child of a pool or a DataLoader: not attached. It costs what it cost before, and reports it if it trains.
- multiprocessing's fork server: its children would inherit an agent that is off in every forked child. They
  attach themselves, once they know what they run.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.preload.rank_detection import MARK
from rankmem_agent.signals import signals_put_off

if TYPE_CHECKING:
    from rankmem_agent.preload.rank_detection import DetectedRank

POOLS: Final = (
    "multiprocessing",
    "concurrent",
    "torch.utils.data",
    "torch.multiprocessing.pool",
    "joblib",
    "loky",
)
"""Modules whose processes run many small tasks."""
_STARTED_BY: Final = "from multiprocessing."
"""How multiprocessing's commands begin (``python -c "from multiprocessing.spawn import ..."``)."""


class ProcessKind(enum.Enum):
    """The purpose of a process."""

    SCRIPT = enum.auto()
    WORKER = enum.auto()
    """A function of the user's, in a process of its own."""
    HELPER = enum.auto()
    """The tasks of a pool or a DataLoader."""


def attach_in_time(detected: DetectedRank) -> None:
    """Attaches now, or when it is known what this process does. Raises nothing of ours."""
    with signals_put_off():
        try:
            if _is_before_its_work():
                _when_it_begins(lambda: _attach(detected))
            else:
                _attach_by_kind(detected)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            Guard(detected.rank).failed(error)


def kind_of_process() -> ProcessKind:
    """This process' kind; asked when its work has begun."""
    process: Any = sys.modules["multiprocessing.process"]
    if process.parent_process() is None:
        return ProcessKind.SCRIPT
    current = process.current_process()
    work = getattr(current, "_target", None) or type(current)
    module = str(getattr(work, "__module__", None) or "")
    is_pool = any(module == name or module.startswith(name + ".") for name in POOLS)
    return ProcessKind.HELPER if is_pool else ProcessKind.WORKER


def _is_before_its_work() -> bool:
    """Whether multiprocessing has started this interpreter and has not come to the work yet."""
    process: Any = sys.modules.get("multiprocessing.process")
    is_started_by = any(word.startswith(_STARTED_BY) for word in sys.orig_argv)
    return is_started_by and process is not None and process.parent_process() is None


class _Begins:
    """Kept alive: multiprocessing's registry is weak."""


_begins: Final = _Begins()


def _when_it_begins(attach: Callable[[], None]) -> None:
    """Calls ``attach`` just before the child's own function.

    Source: ``BaseProcess._bootstrap`` calls ``_after_fork`` there (Python 3.11 to 3.14): for a fork server's
    children that is what register_after_fork registers, for spawned ones nothing.
    """
    from multiprocessing import context, util

    util.register_after_fork(_begins, lambda _: attach())
    context.SpawnProcess._after_fork = staticmethod(attach)  # type: ignore[attr-defined]


def _attach(detected: DetectedRank) -> None:
    """Raises nothing of ours: multiprocessing calls it in the user's process."""
    with signals_put_off():
        try:
            _attach_by_kind(detected)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            Guard(detected.rank).failed(error)


def _attach_by_kind(detected: DetectedRank) -> None:
    kind = kind_of_process()
    os.environ[MARK] = detected.mark()  # of this process, where it was forked
    if kind is ProcessKind.HELPER:
        from rankmem_agent.preload.unrecorded import report_unrecorded, watch

        why = ("it belongs to a process pool", "train in a process of its own")
        watch(sys.modules["torch"], lambda: report_unrecorded(detected.rank, *why))
        return
    from rankmem_agent.preload.attach import attach

    attach(detected, is_worker=kind is ProcessKind.WORKER)
