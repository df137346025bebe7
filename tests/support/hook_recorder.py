"""A recorder that keeps the hooks' records in lists, for tests of the hooks without a tap."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import torch

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.parallel import Parallel
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.step_hooks import StepHooks
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import Tags
from rankmem_agent.hooks.weights import Weights
from rankmem_agent.spool.layout import Category, Kind
from rankmem_agent.spool.records import slots_of


def step_hooks(
    recorder: Recorder,
    guard: Guard,
    *,
    steps: Steps | None = None,
    tags: Tags | None = None,
    weights: Weights | None = None,
    parallel: Parallel | None = None,
) -> StepHooks:
    """The hooks around optimizers' steps, with the parts that a test does not look at made for them."""
    is_compiling = torch.compiler.is_compiling
    steps = steps or Steps(recorder)
    tags = tags or Tags(recorder, is_compiling, guard)
    return StepHooks(recorder, is_compiling, guard, steps, tags, weights, parallel)


@dataclass
class Recorded:
    """Implements ``rankmem_agent.hooks.recorder.Recorder`` with lists."""

    strings: list[str] = field(default_factory=lambda: [""])
    records: list[tuple[Kind, dict[str, int]]] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    step: int = 0

    def intern(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def record(self, kind: Kind, /, **fields: int) -> None:
        slots_of(kind, fields)  # refuses a name that the kind has not
        self.records.append((kind, fields))

    def tag(
        self,
        category: Category,
        device_type: int,
        device_index: int,
        addresses: array[int],
        sizes: array[int],
        names: array[int],
    ) -> None:
        tag = {"device_type": device_type, "device_index": device_index}
        tag |= {"category": int(category), "since_allocation": 1}
        for address, size_bytes, name in zip(addresses, sizes, names, strict=True):
            if address:
                self.record(Kind.TAG, **tag, address=address, size_bytes=size_bytes, name=name)

    def tags(self) -> list[tuple[Category, int, str]]:
        """The TAG records: category, address and name."""
        return [
            (Category(fields["category"]), fields["address"], self.strings[fields["name"]])
            for kind, fields in self.records
            if kind is Kind.TAG
        ]

    def set_module(self, module_string_id: int) -> None:
        self.modules.append(self.strings[module_string_id])

    def module_slot(self) -> Recorded:
        return self

    def module_reader(self) -> None:
        """Hooks alone."""

    def __setitem__(self, index: int, module_string_id: int) -> None:
        assert index == 0
        self.set_module(module_string_id)

    def step_calls(self) -> None:
        """None: Python does all of it."""

    def set_phase(self, phase: int) -> None:
        self.phases.append(phase)

    def set_step(self, step: int, *, by_call: bool = False) -> None:
        self.step = step

    def steps(self) -> list[tuple[int, str]]:
        """The STEP records: the step's number and its source."""
        return [
            (fields["step"], self.strings[fields["optimizer"]])
            for kind, fields in self.records
            if kind is Kind.STEP
        ]
