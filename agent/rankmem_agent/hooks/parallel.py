"""This rank's coordinates in the job's parallel dimensions: dp, tp, pp, cp, ep.

Stage: trainer. Comes in: the user's calls, ``RANKMEM_PARALLEL``, Megatron's ``parallel_state`` where the
training has imported it, torch's ``DeviceMesh`` as meshes are made (2.6 to 2.13). Goes out: a NOTE record
with columns of ``rank_info``, another when more is known. It asks no process group to communicate.

Where two sources name the same dimension, the first of these wins: user, environment, Megatron, mesh. A
mesh's dimension is known by its name (:data:`MESH_NAMES`); dimensions that make one up together, as
``dp_replicate`` and ``dp_shard``, count in the mesh's order, unless a mesh has ``dp`` itself. Meshes without
names are no coordinates.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from rankmem_agent.config import PARALLEL_DIMENSIONS
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.wrapping import wrapped
from rankmem_agent.signals import raise_of_handler
from rankmem_agent.spool.layout import Kind
from rankmem_protos.bounds import RANKS_MAX

MESH_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("dp", "data", "data_parallel", "ddp", "fsdp", "dp_replicate", "dp_shard"), "dp"),
    **dict.fromkeys(("replicate", "shard", "hsdp", "dp_mod_ep", "dp_shard_mod_ep", "dp_shard_in_ep"), "dp"),
    **dict.fromkeys(("tp", "model", "tensor", "tensor_parallel", "mp"), "tp"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage", "pipeline_parallel"), "pp"),
    **dict.fromkeys(("cp", "context", "context_parallel", "sp", "sequence"), "cp"),
    **dict.fromkeys(("ep", "expert", "expert_parallel"), "ep"),
}
"""Names of a mesh's dimensions in use by torchtitan, torchtune, Lightning, Transformers and DeepSpeed."""
MEGATRON_MODULES: Final = ("megatron.core.parallel_state", "megatron.core.mpu")
MEGATRON_RANKS: Final[Mapping[str, str]] = {
    "dp": "get_data_parallel_rank",
    "tp": "get_tensor_model_parallel_rank",
    "pp": "get_pipeline_model_parallel_rank",
    "cp": "get_context_parallel_rank",
    "ep": "get_expert_model_parallel_rank",
}
STEPS_LOOKED_AT: Final = 3
"""Steps at whose end Megatron is looked for; its groups are made before the first."""
MESHES_MAX: Final = 64
"""Meshes kept to be read later; a training makes a handful."""
_SOURCES: Final = ("mesh", "megatron", "environment", "user")
"""The later ones win."""


class Parallel:
    """Learns the coordinates; made once, when the agent attaches.

    Args:
        environment: coordinates that ``RANKMEM_PARALLEL`` gives.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_compiling: Callable[[], bool],
        guard: Guard,
        environment: Mapping[str, int],
    ) -> None:
        self._recorder = recorder
        self._is_compiling = is_compiling
        self._guard = guard.of("parallel dimensions", self.stop)
        self._known: dict[str, dict[str, int]] = {source: {} for source in _SOURCES}
        self._whole: set[str] = set()
        """Dimensions that some mesh has under their own name."""
        self._written: dict[str, int] = {}
        self._refused: set[str] = set()
        """Dimensions whose coordinate cannot be, each reported once."""
        self._unread: list[weakref.ref[Any]] = []
        """Meshes that were made while the program was traced."""
        self._steps_left = STEPS_LOOKED_AT
        self._is_on = True
        self._learn("environment", environment)

    def install(self, device_mesh: type[Any] | None) -> None:
        """Looks at each ``DeviceMesh`` as it is made; None: torch has none."""
        if device_mesh is not None:
            self._look_at(device_mesh)

    def stop(self) -> None:
        """Does nothing from now on."""
        self._is_on = False

    def set_by_user(self, dimensions: Mapping[str, int]) -> None:
        """Takes the coordinates that the user gives."""
        self._guarded(lambda: self._learn("user", dimensions))

    def mesh_made(self, mesh: Any) -> None:
        """A mesh exists: reads this rank's coordinates, now or, where the program is traced, at a step."""
        if self._is_compiling():
            if len(self._unread) < MESHES_MAX:
                self._unread.append(weakref.ref(mesh))
            return
        self._guarded(lambda: self._learn("mesh", self._of_mesh(mesh)))

    @property
    def is_looking(self) -> bool:
        """Whether the next steps are looked at too."""
        return self._steps_left > 0 or bool(self._unread)

    def at_step(self) -> None:
        """At an optimizer's step: Megatron's groups exist by now, or never."""
        if self._unread and not self._is_compiling():
            unread, self._unread = self._unread, []
            for mesh in (reference() for reference in unread):
                if mesh is not None:
                    self.mesh_made(mesh)
        if self._steps_left > 0:
            self._steps_left -= 1
            self._guarded(lambda: self._learn("megatron", _of_megatron()))

    def _look_at(self, device_mesh: type[Any]) -> None:
        device_mesh.__init__ = wrapped(
            device_mesh.__init__, after=lambda call, _: self.mesh_made(call.args[0])
        )

    def _guarded(self, does: Callable[[], None]) -> None:
        if not self._is_on or self._is_compiling():
            return
        try:
            does()
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _learn(self, source: str, dimensions: Mapping[str, int]) -> None:
        self._known[source] |= {name: at for name, at in dimensions.items() if self._is_place(name, at)}
        merged: dict[str, int] = {}
        for each in _SOURCES:
            merged |= self._known[each]
        if merged != self._written:
            self._written = merged
            self._recorder.record(Kind.NOTE, facts=self._recorder.intern(json.dumps({"rank": merged})))

    def _is_place(self, name: str, at: int) -> bool:
        """Whether a rank can be there; where not it is reported once, and left out."""
        if 0 <= at < RANKS_MAX:
            return True
        if name not in self._refused:
            self._refused.add(name)
            self._guard.report(
                f"{name}={at} is not a place in a dimension of at most {RANKS_MAX} ranks: left out"
            )
        return False

    def _of_mesh(self, mesh: Any) -> dict[str, int]:
        """The coordinates a mesh gives; a dimension made of parts only where no mesh has it whole."""
        coordinate, names = mesh.get_coordinate(), mesh.mesh_dim_names
        if coordinate is None or not names:
            return {}
        parts = list(zip(names, coordinate, mesh.shape, strict=True))
        whole = {name: int(at) for name, at, _ in parts if name in PARALLEL_DIMENSIONS}
        self._whole |= whole.keys()
        made_up = {name: at for name, at in _joined(parts).items() if name not in self._whole}
        return {**made_up, **whole}


def _joined(parts: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """Each dimension's coordinate over its parts, the last one running fastest."""
    coordinates: dict[str, int] = {}
    for name, at, size in parts:
        dimension = MESH_NAMES.get(name.lower())
        if dimension is not None:
            coordinates[dimension] = coordinates.get(dimension, 0) * int(size) + int(at)
    return coordinates


def _of_megatron() -> dict[str, int]:
    """The ranks that Megatron's ``parallel_state`` gives, where the training uses it."""
    state = next((sys.modules[name] for name in MEGATRON_MODULES if name in sys.modules), None)
    is_initialized = getattr(state, "model_parallel_is_initialized", None)
    if state is None or is_initialized is None or not is_initialized():
        return {}
    ranks: dict[str, int] = {}
    for dimension, name in MEGATRON_RANKS.items():
        get_rank = getattr(state, name, None)
        if get_rank is None:
            continue
        try:
            ranks[dimension] = int(get_rank())
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # a group not made in this run
            raise_of_handler(error)
    return ranks
