"""Which storages are parameters, gradients, optimizer state and buffers: TAG records.

Stage: trainer, the threads that build modules and call ``optimizer.step()``. Comes in: torch's registration
hooks of modules (2.6 to 2.13), and ``hooks.step_hooks`` around optimizers' steps. Goes out: TAG records with
addresses. Tensors are asked for their address alone, never for their content; nothing is kept alive; it does
nothing while Dynamo traces.

- *Parameters* when a module registers them. The rest of the model, before an optimizer sees it, through
  :meth:`Tags.tree`, with those that want no gradient marked. At an optimizer's steps: ``hooks.plans``, as for
  their *gradients*.
- *Optimizer state* after a step, as long as it is new: when the optimizer's state was replaced or has grown,
  or its first tensor moved.
- *Buffers* (``running_mean``, a mask) are unknown at first. At the second step after they appeared those of a
  module none of which was written to are inputs; the others stay unknown.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rankmem_agent.hooks.by_identity import ByIdentity
from rankmem_agent.hooks.guard import Guard, unseen_by_modes
from rankmem_agent.hooks.module_names import children, own_buffer, parameters, tree
from rankmem_agent.hooks.recorder import Recorder, Removable
from rankmem_agent.signals import raise_of_handler
from rankmem_agent.spool.layout import FROZEN, Category, DeviceType, Kind

NESTING_MAX: Final = 3
"""Containers around a tensor of an optimizer's state: LBFGS keeps lists, Shampoo lists in mappings."""
UNREADABLE: Final = (Exception,)
"""Raised by tensors without an address when asked for it, and by classes of the user's own when asked for
anything: such a tensor is left out."""
_HIGH: Final = 1 << 32
"""An address from here on is believed; one below may be an offset in a freed storage."""
_DEVICES: Final = {
    "cpu": DeviceType.CPU,
    "cuda": DeviceType.CUDA,
    "xpu": DeviceType.XPU,
    "npu": DeviceType.NPU,
}

Device = tuple[int, int]


class Tags:
    """Follows parameters through modules and optimizers; made once, when the agent attaches."""

    def __init__(self, recorder: Recorder, is_compiling: Callable[[], bool], guard: Guard) -> None:
        self._recorder = recorder
        self._is_compiling = is_compiling
        self._guard = guard.of("categories", self.stop, infers=False)
        self._is_on = True
        self._lock = threading.Lock()
        self._modules: ByIdentity[bool] = ByIdentity()
        """Those that registered a parameter, a buffer or a child."""
        self._buffers: ByIdentity[dict[str, int]] = ByIdentity()
        """By module: the version of each undecided buffer at the step before, -1 before a step."""
        self._wanted: Callable[[], None] = lambda: None

    @property
    def is_waiting(self) -> bool:
        """Whether buffers wait to be judged at the next step."""
        return bool(self._buffers)

    def when_waiting(self, wanted: Callable[[], None]) -> None:
        """Has ``wanted`` called when something waits for the next step. It must not raise."""
        self._wanted = wanted

    def install(self) -> list[Removable]:
        """Registers the global hooks of modules; those of optimizers are ``hooks.step_hooks``'."""
        from torch.nn.modules import module

        return [
            module.register_module_parameter_registration_hook(self.parameter_registered),
            module.register_module_buffer_registration_hook(self.buffer_registered),
            module.register_module_module_registration_hook(self.module_registered),
        ]

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered."""
        self._is_on = False

    def parameter_registered(self, module: Any, name: str, parameter: Any, /) -> None:
        """The hook after ``module.name = parameter``."""
        self._guarded(self._parameter_registered, module, name, parameter)

    def buffer_registered(self, module: Any, name: str, buffer: Any, /) -> None:
        """The hook after ``module.register_buffer(name, buffer)``."""
        self._guarded(self._buffer_registered, module, name, buffer)

    def module_registered(self, module: Any, name: str, child: Any, /) -> None:
        """The hook after ``module.name = child``: names are read off the tree."""
        self._guarded(self._module_registered, module, child)

    def tree(self, root: Any) -> None:
        """Tags all parameters of a module and its children where they are now; for its first call."""
        self._guarded(self._tree, root)

    def _guarded(self, does: Callable[..., None], *args: Any) -> None:
        if not self._is_on or self._is_compiling():
            return
        try:
            with unseen_by_modes():
                does(*args)
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _parameter_registered(self, module: Any, name: str, parameter: Any) -> None:
        self._modules[module] = True
        if parameter is not None:
            self._tag(Category.PARAMETER, [(parameter, f"{type(module).__name__}.{name}")])

    def _buffer_registered(self, module: Any, name: str, buffer: Any) -> None:
        self._modules[module] = True
        if buffer is None:
            return
        with self._lock:
            self._buffers[module] = {**self._buffers.get(module, {}), name: -1}
        self._wanted()
        self._tag(Category.UNKNOWN, [(buffer, f"{type(module).__name__}.{name}")])

    def _module_registered(self, module: Any, child: Any) -> None:
        self._modules[module] = True
        if child is not None and child not in self._modules:  # a copy: its parameters were not registered
            self._tree(child)

    def _tree(self, root: Any) -> None:
        for name, parameter in parameters(root):
            self._tag(Category.PARAMETER, [(parameter, name)], frozen=not wants_gradient(parameter))
        for _, module in tree(root):  # those that were registered while nothing could be asked
            self._modules[module] = True

    def _tag(self, category: Category, tensors: Iterable[tuple[Any, str]], *, frozen: bool = False) -> None:
        """Tags a few tensors; for what happens once, not in each step."""
        for tensor, name in tensors:
            place = place_of(tensor)
            if place is not None:
                string_id = self._recorder.intern(name)
                qualifier = FROZEN if frozen else 0
                meant = {"category": category, "since_allocation": 1, "qualifier": qualifier}
                self._recorder.record(Kind.TAG, name=string_id, **meant, **place)

    def names(self) -> dict[int, str]:
        """Full names of the parameters of all modules known, by identity."""
        modules = list(self._modules)
        below = {id(child) for module in modules for _, child in children(module)}
        roots = [module for module in modules if id(module) not in below]
        return {id(each): name for root in roots for name, each in parameters(root)}

    def state(self, optimizer: Any) -> None:
        """Tags all tensors of an optimizer's state. The caller is guarded."""
        names = self.names()
        for parameter, values in optimizer.state.items():
            prefix = names.get(id(parameter), "")
            self._tag(Category.OPTIMIZER_STATE, tensors_in(values, prefix))

    def judge_buffers(self) -> None:
        """At the second step after a buffer appeared: if nothing has written to it, it is input. The caller
        is guarded."""
        if not self._buffers:
            return
        with self._lock:
            undecided, self._buffers = self._buffers, ByIdentity()
        for module, versions in undecided.items():
            now = {name: buffer for name in versions if (buffer := own_buffer(module, name)) is not None}
            seen = {name: _version_of(buffer) for name, buffer in now.items() if versions[name] >= 0}
            # BatchNorm writes its statistics without counting their versions, its num_batches_tracked with.
            if all(versions[name] == version for name, version in seen.items()):
                names = type(module).__name__
                self._tag(Category.INPUT, [(now[name], f"{names}.{name}") for name in seen])
            fresh = {name: _version_of(buffer) for name, buffer in now.items() if name not in seen}
            if fresh:
                self._buffers[module] = fresh


def place_of(tensor: Any) -> dict[str, int] | None:
    """Fields of a TAG record: where a tensor's elements lie; None where nothing is recorded of it."""
    device, address = device_of(tensor), address_of(tensor)
    if device is None or address == 0:
        return None
    return {
        "device_type": device[0],
        "device_index": device[1],
        "address": address,
        "size_bytes": size_of(tensor),
    }


def device_of(tensor: Any) -> Device | None:
    """Type and index of the tensor's device as the spool has them; None where nothing is recorded."""
    if type(tensor).__name__ == "FakeTensor":  # warns when asked for its address
        return None
    try:
        device = tensor.device
        kind = _DEVICES.get(device.type)
        return None if kind is None else (int(kind), device.index or 0)
    except UNREADABLE as error:
        raise_of_handler(error)
        return None


def address_of(tensor: Any) -> int:
    """Address of the tensor's first element; 0 where it has none: sparse, a subclass without storage, a freed
    storage (torch gives the tensor's offset in it)."""
    try:
        local = getattr(tensor, "_local_tensor", None)  # DTensor: this rank's shard
        own = tensor if local is None else local
        address = int(own.data_ptr())
        return address if address != own.storage_offset() * own.element_size() else 0
    except UNREADABLE as error:
        raise_of_handler(error)
        return 0


def size_of(tensor: Any) -> int:
    """Bytes of the tensor's elements on this rank; 0 where not known."""
    try:
        local = getattr(tensor, "_local_tensor", None)
        own = tensor if local is None else local
        return int(own.numel() * own.element_size())
    except UNREADABLE as error:
        raise_of_handler(error)
        return 0


def _version_of(tensor: Any) -> int:
    """How often it has been written to; 0 where not counted, as within ``torch.inference_mode``."""
    try:
        return int(tensor._version)
    except UNREADABLE as error:
        raise_of_handler(error)
        return 0


def wants_gradient(tensor: Any) -> bool:
    """Whether it requires a gradient; no where not known."""
    try:
        return bool(tensor.requires_grad)
    except UNREADABLE as error:
        raise_of_handler(error)
        return False


def addresses_of(parameters: list[Any]) -> array[int]:
    """The address of each; the frequent case without a call of ours for each."""
    try:
        addresses = array("Q", [parameter.data_ptr() for parameter in parameters])
    except UNREADABLE as error:
        raise_of_handler(error)
        return array("Q", map(address_of, parameters))
    return addresses if min(addresses, default=0) >= _HIGH else array("Q", map(address_of, parameters))


def gradients_of(parameters: list[Any]) -> array[int]:
    """The address of each one's gradient; 0 where it has none."""
    gradients = [parameter.grad for parameter in parameters]
    try:
        addresses = [0 if each is None else each.data_ptr() for each in gradients]
    except UNREADABLE as error:
        raise_of_handler(error)
        addresses = [0] * len(gradients)
    both = zip(addresses, gradients, strict=True)
    return array("Q", [at if at >= _HIGH or each is None else address_of(each) for at, each in both])


def tensors_in(value: Any, name: str, depth: int = 0) -> Iterator[tuple[Any, str]]:
    """The tensors in an optimizer's state, with their names."""
    if hasattr(value, "data_ptr"):
        yield value, name
    elif depth < NESTING_MAX:
        is_list = isinstance(value, (list, tuple))
        items = value.items() if isinstance(value, dict) else enumerate(value) if is_list else ()
        for key, each in items:
            yield from tensors_in(each, f"{name}.{key}", depth + 1)


def first_address(state: Any) -> int:
    """Address of the first tensor in the first entry of an optimizer's state; 0 where it has none."""
    first = next(iter(state.values()))
    return next((address_of(tensor) for tensor, _ in tensors_in(first, "")), 0)
