"""An optimizer's parameters, kept between its steps, and the walk over them: TAG records.

Stage: trainer, the threads that call ``optimizer.step()``. Comes in: optimizers before their steps. Goes out:
TAG records of parameters whose address has changed since (after ``.to()``, sharding,
``load_state_dict(assign=True)``) and of all gradients: ``set_to_none`` gives a step new blocks at the same
addresses, so there is nothing to compare. AccumulateGrad steals what backward made, so a block has been a
gradient since it was allocated; pairing judges it so.

The walk is the tap's (``steps.cpp``): 40 ns a parameter. Python walks what the tap cannot read (DTensor,
sparse gradients, classes of tensors), and everything where there is no tap or an optimizer's groups are no
plain lists. **A plan keeps nothing of the user's alive**, and no parameter has a weak reference from us:
``torch.utils.swap_tensors``, which ``module.to()`` may use, refuses those that have one. What Python walks is
therefore known by the identities of its objects, the rest by the tap's own means.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rankmem_agent.hooks.guard import unseen_by_listeners
from rankmem_agent.hooks.recorder import (
    FOUND_LOOK,
    FOUND_ODD,
    FOUND_OTHER,
    ODD_GRADIENT,
    ODD_PARAMETER,
    Recorder,
    StepCalls,
)
from rankmem_agent.hooks.tags import Device, address_of, addresses_of, device_of, gradients_of, size_of
from rankmem_agent.spool.layout import Category


@dataclass(slots=True)
class _Group:
    """The parameters on one device that Python walks."""

    places: list[int] = field(default_factory=list)
    """Among all of the optimizer's."""
    names: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    """Where they were when they were tagged last."""


class Plan:
    """An optimizer's parameters as they were when it was made.

    Args:
        names: array("I"), a string id for each. odd: array("B"), ODD_* bits for each.
        handle: the tap's plan; 0 for none.
    """

    __slots__ = ("_free", "groups", "handle", "identities", "names", "num_odd", "odd", "state")

    def __init__(self, identities: list[int], names: array[int], odd: array[int], handle: int) -> None:
        self.identities = identities
        self.names = names
        self.odd = odd
        self.handle = handle
        self.groups: dict[Device, _Group] = {}
        self.num_odd = 0
        """Parameters in the groups."""
        self.state: tuple[int, int, int] = (0, 0, 0)
        """Of a plan without a handle: identity and length of the state when it was tagged, and the address
        of its first tensor."""
        self._free: Callable[[int], None] | None = None

    def freed_by(self, free: Callable[[int], None]) -> None:
        """Has the tap's plan freed with this one."""
        self._free = free

    def __del__(self) -> None:
        if self._free is not None:
            with contextlib.suppress(Exception):  # the interpreter may be at its end
                self._free(self.handle)


class Plans:
    """Makes plans and walks them.

    Args:
        calls: the tap's; None to walk in Python.
        names: full names of all known parameters, by identity.
    """

    def __init__(
        self, recorder: Recorder, calls: StepCalls | None, names: Callable[[], dict[int, str]]
    ) -> None:
        self._recorder = recorder
        self._calls = calls
        self._names = names

    def walk(self, plan: Plan | None, optimizer: Any, phase: int) -> tuple[Plan, int]:
        """Tags what moved and the gradients; the plan that holds now, and what was found, as FOUND_* bits."""
        found = FOUND_OTHER if plan is None else self._begin(plan, optimizer, phase)
        if plan is None or found & FOUND_OTHER:
            plan = self._make(optimizer, self._calls)
            found = self._begin(plan, optimizer, phase) | FOUND_LOOK
            if found & FOUND_OTHER:  # its groups are no lists of tensors as the tap reads them
                plan = self._make(optimizer, None)
                found = FOUND_ODD | FOUND_LOOK
        if found & FOUND_ODD:
            found |= self.walk_odd(plan, optimizer)
        return plan, found

    def walk_odd(self, plan: Plan, optimizer: Any) -> int:
        """Tags what is Python's of a plan whose parameters are still the optimizer's; FOUND_LOOK or 0."""
        parameters = parameters_of(optimizer)
        if plan.num_odd != plan.odd.count(ODD_PARAMETER):
            self._group(plan, parameters)
        found = 0
        for device, group in plan.groups.items():
            if self._walk_group(device, group, [parameters[place] for place in group.places]):
                found = FOUND_LOOK
        if ODD_GRADIENT in plan.odd:
            for place, odd in enumerate(plan.odd):
                if odd == ODD_GRADIENT:
                    self._tag_gradient(parameters[place], plan.names[place])
        return found

    def _begin(self, plan: Plan, optimizer: Any, phase: int) -> int:
        if plan.handle and self._calls is not None:
            return self._calls.begin(plan.handle, optimizer.param_groups, phase)
        is_same = list(map(id, parameters_of(optimizer))) == plan.identities
        return FOUND_ODD if is_same else FOUND_OTHER

    def _make(self, optimizer: Any, calls: StepCalls | None) -> Plan:
        parameters = parameters_of(optimizer)
        known = self._names()
        names = array("I", [self._recorder.intern(known.get(id(each), "")) for each in parameters])
        odd = array("B", bytes(len(parameters)))
        handle = 0 if calls is None else calls.make_plan(parameters, names, odd)
        if not handle:
            odd = array("B", [ODD_PARAMETER]) * len(parameters)
        plan = Plan(list(map(id, parameters)), names, odd, handle)
        if handle and calls is not None:
            plan.freed_by(calls.free_plan)
        self._group(plan, parameters)
        return plan

    def _group(self, plan: Plan, parameters: list[Any]) -> None:
        """Sorts the parameters that Python walks by their devices."""
        plan.groups = {}
        plan.num_odd = plan.odd.count(ODD_PARAMETER)
        if not plan.num_odd:
            return
        for place, parameter in enumerate(parameters):
            device = device_of(parameter) if plan.odd[place] == ODD_PARAMETER else None
            if device is not None:
                group = plan.groups.setdefault(device, _Group())
                group.places.append(place)
                group.names.append(plan.names[place])
                group.sizes.append(size_of(parameter))
                group.addresses.append(0)

    def _walk_group(self, device: Device, group: _Group, parameters: list[Any]) -> bool:
        """Tags a group; true if a parameter has moved."""
        now = addresses_of(parameters)
        has_moved = now != group.addresses
        if has_moved:
            both = zip(now, group.addresses, strict=True)
            moved = array("Q", [new if new != old else 0 for new, old in both])
            self._recorder.tag(Category.PARAMETER, *device, moved, group.sizes, group.names)
            group.addresses = now
        gradients = gradients_of(parameters)
        self._recorder.tag(Category.GRADIENT, *device, gradients, group.sizes, group.names)
        if 0 in gradients:
            for parameter, name in zip(parameters, group.names, strict=True):
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._tag_gradient(parameter, name)
        return has_moved

    def _tag_gradient(self, parameter: Any, name: int) -> None:
        """Tags a gradient that is no plain tensor; of a sparse one its values: the indices are as a rule the
        input itself."""
        gradient = parameter.grad
        if gradient is None:
            return
        tensor = gradient
        if gradient.is_sparse:
            with unseen_by_listeners():
                tensor = gradient._values()
        device, address = device_of(tensor), address_of(tensor)
        if device is not None and address:
            arrays = array("Q", [address]), array("Q", [size_of(tensor)]), array("I", [name])
            self._recorder.tag(Category.GRADIENT, *device, *arrays)


def parameters_of(optimizer: Any) -> list[Any]:
    """All parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
