"""Evidence that a process trains: its process group, an optimizer's step.

Stage: trainer, the thread that does it. Comes in: torch's own calls. Goes out: a call back. What it wraps is
private to torch and called once a process group, so that nothing of ours stands on the stack of a rendezvous
that hangs, however the user imported ``init_process_group``. Where torch no longer has it, the step shows it.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

FAKE_BACKEND: Final = "fake"
"""A process group of one process that plays many: its numbers are no ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The default process group as this process sees it."""

    rank: int
    world_size: int
    rendezvous: str
    """The port or file where its processes met: the same for all, and for no other group at the time."""


def when_grouped(callback: Callable[[Group], None]) -> None:
    """Calls ``callback`` whenever a default process group has been made. It must not raise.

    Source: ``torch.distributed.distributed_c10d._update_default_pg``, the last that ``init_process_group``
    does with a new group (2.6 to 2.13).
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    genuine = getattr(c10d, "_update_default_pg", None)
    if genuine is None:
        return

    @functools.wraps(genuine)
    def update(*args: Any, **kwargs: Any) -> Any:
        done = genuine(*args, **kwargs)
        found = current_group()
        if found is not None:
            callback(found)
        return done

    c10d._update_default_pg = update


def current_group() -> Group | None:
    """The default process group, or None without one, or where it cannot be read."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        process_group = c10d._world.default_pg
        if process_group is None:
            return None
        backend, store = c10d._world.pg_map[process_group]
        rank, world_size = int(process_group.rank()), int(process_group.size())
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        return None  # no group, none of ours, or another torch than we know
    if backend == FAKE_BACKEND or rank < 0:
        return None
    return Group(rank=rank, world_size=world_size, rendezvous=_rendezvous(store))


def when_stepped(torch: Any, callback: Callable[[], None]) -> None:
    """Calls ``callback`` after each ``optimizer.step()``. It must not raise."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    is_compiling = torch.compiler.is_compiling

    def stepped(optimizer: object, args: Any, kwargs: Any) -> None:
        if not is_compiling():
            callback()

    register_optimizer_step_post_hook(stepped)


def _rendezvous(store: Any) -> str:
    """The identity of a store's place; empty for one that has none (MPI's)."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    place = getattr(store, "port", None) or getattr(store, "path", None)
    return str(place or os.environ.get("MASTER_PORT", ""))
