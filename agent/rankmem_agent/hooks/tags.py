"""Which storages are parameters, gradients, optimizer state and buffers: TAG records.

Stage: trainer, the threads that build modules and call ``optimizer.step()``. Comes in: torch's registration
hooks of modules and its global optimizer hooks (2.6 to 2.13). Goes out: TAG records with addresses, many in
one call of the tap. Tensors are asked for their address alone, never for their content; nothing is kept
alive but what the optimizer keeps alive itself; it does nothing while Dynamo traces.

- *Parameters* when a module registers them, and before a step those whose address has changed since (after
  ``.to()``, sharding, ``load_state_dict(assign=True)``). The rest of the model, before an optimizer sees it,
  through :meth:`Tags.tree`, with those that want no gradient marked.
- *Gradients* before each step, all of them: ``set_to_none`` gives a step new blocks at the same addresses, so
  there is nothing to compare. AccumulateGrad steals what backward made, so a block has been a gradient since
  it was allocated; pairing judges it so.
- *Optimizer state* after a step, as long as it is new: when the optimizer's state was replaced or has grown,
  or its first tensor moved.
- *Buffers* (``running_mean``, a mask) are unknown at first. At the second step after they appeared those of a
  module to none of which anybody has written are inputs; the others stay unknown.
"""

from __future__ import annotations

import operator
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from rankmem_agent.hooks.guard import Guard, unseen_by_modes
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.steps import Removable
from rankmem_agent.spool.layout import Category, DeviceType, Kind

NESTING_MAX: Final = 3
"""Containers around a tensor of an optimizer's state: LBFGS keeps lists, Shampoo lists in mappings."""
_UNREADABLE: Final = (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError)
"""What tensors without an address raise when asked for it."""
_DEVICES: Final = {"cpu": DeviceType.CPU, "cuda": DeviceType.CUDA, "xpu": DeviceType.XPU}

Device = tuple[int, int]


@dataclass(slots=True)
class _Group:
    """The parameters of an optimizer on one device."""

    parameters: list[Any] = field(default_factory=list)
    names: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    """Where they were when they were tagged last."""


@dataclass(slots=True)
class _Plan:
    """What is known of an optimizer between its steps."""

    parameters: list[Any]
    groups: dict[Device, _Group]
    state: tuple[int, int, int] = (0, 0, 0)
    """Identity and length of its state when it was tagged, and the address of its first tensor."""


class Tags:
    """Follows parameters through modules and optimizers; made once, when the agent attaches."""

    def __init__(self, recorder: Recorder, is_compiling: Callable[[], bool], guard: Guard) -> None:
        self._recorder = recorder
        self._is_compiling = is_compiling
        self._guard = guard.of("categories", self.stop, infers=False)
        self._is_on = True
        self._lock = threading.Lock()
        self._modules: WeakSet[Any] = WeakSet()
        """Those that registered a parameter, a buffer or a child."""
        self._plans: WeakKeyDictionary[object, _Plan] = WeakKeyDictionary()
        self._buffers: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()
        """By module: the version of each undecided buffer at the step before, -1 before a step."""

    def install(self) -> list[Removable]:
        """Registers the global hooks."""
        from torch.nn.modules import module
        from torch.optim import optimizer

        return [
            module.register_module_parameter_registration_hook(self.parameter_registered),
            module.register_module_buffer_registration_hook(self.buffer_registered),
            module.register_module_module_registration_hook(self.module_registered),
            optimizer.register_optimizer_step_pre_hook(self.before),
            optimizer.register_optimizer_step_post_hook(self.after),
        ]

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered."""
        self._is_on = False

    def parameter_registered(self, module: Any, name: str, parameter: Any) -> None:
        """The hook after ``module.name = parameter``."""
        self._guarded(self._parameter_registered, module, name, parameter)

    def buffer_registered(self, module: Any, name: str, buffer: Any) -> None:
        """The hook after ``module.register_buffer(name, buffer)``."""
        self._guarded(self._buffer_registered, module, name, buffer)

    def module_registered(self, module: Any, name: str, child: Any) -> None:
        """The hook after ``module.name = child``: names are read off the tree."""
        self._guarded(self._module_registered, module, child)

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook before ``optimizer.step()``."""
        self._guarded(self._before, optimizer)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The hook after it."""
        self._guarded(self._after, optimizer)

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
        self._modules.add(module)
        if parameter is not None:
            self._tag(Category.PARAMETER, [(parameter, f"{type(module).__name__}.{name}")])

    def _buffer_registered(self, module: Any, name: str, buffer: Any) -> None:
        self._modules.add(module)
        if buffer is None:
            return
        with self._lock:
            self._buffers.setdefault(module, {})[name] = -1
        self._tag(Category.UNKNOWN, [(buffer, f"{type(module).__name__}.{name}")])

    def _module_registered(self, module: Any, child: Any) -> None:
        self._modules.add(module)
        if child is not None and child not in self._modules:  # a copy: its parameters were not registered
            self._tree(child)
            self._modules.update(child.modules())

    def _tree(self, root: Any) -> None:
        for name, parameter in root.named_parameters():
            self._tag(Category.PARAMETER, [(parameter, name)], frozen=not parameter.requires_grad)

    def _tag(self, category: Category, tensors: Iterable[tuple[Any, str]], *, frozen: bool = False) -> None:
        """Tags a few tensors; for what happens once, not in each step."""
        for tensor, name in tensors:
            device, address = device_of(tensor), address_of(tensor)
            if device is None or address == 0:
                continue
            self._recorder.record(
                Kind.TAG,
                action=category,
                device_type=device[0],
                device_index=device[1],
                a=address,
                b=size_of(tensor),
                c=1,
                d=int(frozen),
                e=self._recorder.intern(name),
            )

    def _before(self, optimizer: Any) -> None:
        plan = self._plan(optimizer)
        for device, group in plan.groups.items():
            now = addresses_of(group.parameters)
            if now != group.addresses:
                both = zip(now, group.addresses, strict=True)
                moved = array("Q", [new if new != old else 0 for new, old in both])
                self._recorder.tag(Category.PARAMETER, *device, moved, group.sizes, group.names)
                group.addresses = now
            gradients = gradients_of(group.parameters)
            self._recorder.tag(Category.GRADIENT, *device, gradients, group.sizes, group.names)
            if 0 in gradients:
                self._tag(Category.GRADIENT, sparse_values(group.parameters))
        if self._buffers:
            self._judge_buffers()

    def _plan(self, optimizer: Any) -> _Plan:
        """The optimizer's plan; a new one where its parameters are others than before."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        plan = self._plans.get(optimizer)
        is_same = plan is not None and len(plan.parameters) == len(parameters)
        if plan is not None and is_same and all(map(operator.is_, plan.parameters, parameters)):
            return plan
        names = self._names()
        groups: dict[Device, _Group] = {}
        for parameter in parameters:
            device = device_of(parameter)
            if device is None:
                continue
            group = groups.setdefault(device, _Group())
            group.parameters.append(parameter)
            group.names.append(self._recorder.intern(names.get(id(parameter), "")))
            group.sizes.append(size_of(parameter))
            group.addresses.append(0)
        plan = self._plans[optimizer] = _Plan(parameters, groups)
        return plan

    def _names(self) -> dict[int, str]:
        """Full names of the parameters of all modules known, by identity."""
        modules = list(self._modules)
        below = {id(child) for module in modules for child in module._modules.values()}
        roots = [module for module in modules if id(module) not in below]
        return {id(each): name for root in roots for name, each in root.named_parameters()}

    def _after(self, optimizer: Any) -> None:
        plan = self._plans.get(optimizer)
        state = optimizer.state
        if plan is None or not state:
            return
        known = (id(state), len(state), _first_address(state))
        if known == plan.state:
            return
        plan.state = known
        names = self._names()
        for parameter, values in state.items():
            prefix = names.get(id(parameter), "")
            self._tag(Category.OPTIMIZER_STATE, tensors_in(values, prefix))

    def _judge_buffers(self) -> None:
        """At the second step after a buffer appeared: if nobody has written to it, it is input."""
        with self._lock:
            undecided, self._buffers = self._buffers, WeakKeyDictionary()
        for module, versions in undecided.items():
            now = {name: buffer for name in versions if (buffer := module._buffers.get(name)) is not None}
            seen = {name: buffer._version for name, buffer in now.items() if versions[name] >= 0}
            # BatchNorm writes its statistics without counting their versions, its num_batches_tracked with.
            if all(versions[name] == version for name, version in seen.items()):
                names = type(module).__name__
                self._tag(Category.INPUT, [(now[name], f"{names}.{name}") for name in seen])
            fresh = {name: buffer._version for name, buffer in now.items() if name not in seen}
            if fresh:
                self._buffers[module] = fresh


def device_of(tensor: Any) -> Device | None:
    """Type and index of the tensor's device as the spool has them; None where nothing is recorded."""
    if type(tensor).__name__ == "FakeTensor":  # warns when asked for its address
        return None
    device = tensor.device
    kind = _DEVICES.get(device.type)
    return None if kind is None else (int(kind), device.index or 0)


def address_of(tensor: Any) -> int:
    """Address of the tensor's first element; 0 where it has none: sparse, a subclass without storage."""
    try:
        local = getattr(tensor, "_local_tensor", None)  # DTensor: this rank's shard
        return int((tensor if local is None else local).data_ptr())
    except _UNREADABLE:
        return 0


def size_of(tensor: Any) -> int:
    """Bytes of the tensor's elements on this rank."""
    local = getattr(tensor, "_local_tensor", None)
    own = tensor if local is None else local
    return int(own.numel() * own.element_size())


def addresses_of(parameters: list[Any]) -> array[int]:
    """The address of each; the frequent case without a call of ours for each."""
    try:
        addresses = array("Q", [parameter.data_ptr() for parameter in parameters])
    except _UNREADABLE:
        return array("Q", map(address_of, parameters))
    return addresses if 0 not in addresses else array("Q", map(address_of, parameters))


def gradients_of(parameters: list[Any]) -> array[int]:
    """The address of each one's gradient; 0 where it has none."""
    gradients = [parameter.grad for parameter in parameters]
    try:
        return array("Q", [0 if each is None else each.data_ptr() or address_of(each) for each in gradients])
    except _UNREADABLE:
        return array("Q", [0 if each is None else address_of(each) for each in gradients])


def sparse_values(parameters: list[Any]) -> Iterator[tuple[Any, str]]:
    """Values of those gradients that are sparse; the indices are as a rule the input itself."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            yield gradient._values(), ""


def tensors_in(value: Any, name: str, depth: int = 0) -> Iterator[tuple[Any, str]]:
    """The tensors in an optimizer's state, with their names."""
    if hasattr(value, "data_ptr"):
        yield value, name
    elif depth < NESTING_MAX:
        is_list = isinstance(value, (list, tuple))
        items = value.items() if isinstance(value, dict) else enumerate(value) if is_list else ()
        for key, each in items:
            yield from tensors_in(each, f"{name}.{key}", depth + 1)


def _first_address(state: Any) -> int:
    first = next(iter(state.values()))
    return next((address_of(tensor) for tensor, _ in tensors_in(first, "")), 0)
