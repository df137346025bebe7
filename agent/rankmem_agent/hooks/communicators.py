"""What NCCL's communicators hold on devices, by process group.

Stage: trainer, the thread on which a step ends. Comes in: torch's process groups; each is asked about once a
second for ``memory_stats()``, which torch has since 2.14 (with NCCL 2.29.7 or newer; older ones are not
asked). Goes out: COMMUNICATOR records. It keeps no group, and no group communicates for it: NCCL adds up
counters of its own process.

- *Held* is what NCCL has allocated for the communicator (``total``); of one that is suspended only what stays
  (``persist``). Buffers of the program's that it uses are the allocator's, and not in it.
- *Unknown, not 0*: a group that has no communicator yet makes no record, nor one of which NCCL keeps no
  account: its total is 0 then, and a communicator always has allocated something.
- *Once*: a communicator that was split from another and shares its resources (``split_share``) reports the
  bytes of both, as the other does. It is left out.

Source: ``c10d::Backend::getMemoryStats`` of torch 2.14, ``ncclCommMemStats`` of NCCL 2.30.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.signals import raise_of_handler
from rankmem_agent.spool.layout import DeviceType, Kind

INTERVAL_S: Final = 1.0
"""As the other samples of devices."""
UNDESCRIBED: Final = frozenset({"", "undefined"})
"""What torch calls a group that nobody has described."""


class Communicators:
    """Samples the communicators; made once, when the agent attaches.

    Args:
        is_traced: the program is traced, not run.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_traced: Callable[[], bool],
        guard: Guard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder = recorder
        self._is_traced = is_traced
        self._guard = guard.of("bytes of communicators", self.stop)
        self._clock = clock
        self._torch: Any = None
        self._world: Any = None
        self._due_s = 0.0
        self._labels: dict[str, str] = {}
        """Of groups by their name, which is theirs alone."""
        self._held: dict[str, int] = {}
        """The device of each group with a record, by its name."""
        self._refused: set[str] = set()
        """Groups of which NCCL has refused an answer: another request would be refused as well."""

    def install(self, torch: Any) -> None:
        """Asks from now on, where torch can be asked."""
        c10d = getattr(torch.distributed, "distributed_c10d", None)
        backend = getattr(getattr(torch._C, "_distributed_c10d", None), "Backend", None)
        if hasattr(backend, "memory_stats"):
            self._torch, self._world = torch, getattr(c10d, "_world", None)

    def stop(self) -> None:
        """Asks nothing from now on."""
        self._world = None

    def look(self) -> None:
        """At a step's end: the samples that are due."""
        if self._world is None or (now_s := self._clock()) < self._due_s or self._is_traced():
            return
        self._due_s = now_s + INTERVAL_S
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _sample(self) -> None:
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return
        names: dict[Any, str] = dict(self._world.pg_names)
        for group, name in names.items():
            if name in self._refused or "nccl" not in str(self._world.pg_backend_config.get(group, "")):
                continue
            held_bytes = self._held_bytes(group, name)
            if held_bytes is not None:
                bound = group.bound_device_id
                self._held[name] = cuda.current_device() if bound is None else bound.index
                self._record(name, self._label(group, name), held_bytes)
        for name in self._held.keys() - set(names.values()):
            self._record(name, self._labels[name], 0)
            del self._held[name], self._labels[name]
        self._refused &= set(names.values())

    def _held_bytes(self, group: Any, name: str) -> int | None:
        """What a group's communicator holds; None where that is not known, or another one reports it."""
        try:
            backend = group._get_backend(self._torch.device("cuda"))
            backend = getattr(backend, "wrapped_pg", backend)  # under TORCH_DISTRIBUTED_DEBUG=DETAIL
            if not _has_communicators(backend) or _shares_a_parents(backend):
                return None
            stats = backend.memory_stats()
        except self._torch.distributed.DistBackendError:  # NCCL's own refusal
            self._refused.add(name)
            return None
        except RuntimeError as error:  # no communicator for the device, or an NCCL that cannot tell
            raise_of_handler(error)
            return None
        if not stats["total"]:
            return None
        return int(stats["persist"] if stats["suspended"] else stats["total"])

    def _label(self, group: Any, name: str) -> str:
        """NCCL and the group as the program describes it; with torch's name, if another is called alike."""
        label = self._labels.get(name)
        if label is None:
            library = "RCCL" if getattr(self._torch.version, "hip", None) else "NCCL"
            described = str(getattr(group, "group_desc", ""))
            label = f"{library} {name if described in UNDESCRIBED else described}"
            if label in self._labels.values():
                label = f"{label} {name}"
            self._labels[name] = label
        return label

    def _record(self, name: str, label: str, held_bytes: int) -> None:
        component = self._recorder.intern(label)
        if component:
            self._recorder.record(
                Kind.COMMUNICATOR,
                device_type=DeviceType.CUDA,
                device_index=self._held[name],
                held_bytes=held_bytes,
                component=component,
            )


def _has_communicators(backend: Any) -> bool:
    """Whether all that it has are ready; one without any would guess its device, and warn of that."""
    is_initialized = getattr(backend, "_is_initialized", None)
    return is_initialized is None or bool(is_initialized())


def _shares_a_parents(backend: Any) -> bool:
    """Whether a communicator was split from one whose resources it uses."""
    options = getattr(backend, "options", None)
    parent = getattr(options, "split_from", None)
    if parent is None:
        return False
    both = (options, getattr(parent, "options", None))
    return any(getattr(getattr(each, "config", None), "split_share", 0) == 1 for each in both)
