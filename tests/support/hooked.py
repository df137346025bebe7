"""The hooks that the agent installs, for trainings under a tap that a test opened.

Stage: tests; runs in the process that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.modules import Modules
from rankmem_agent.hooks.sharding import Sharding
from rankmem_agent.hooks.step_hooks import StepHooks
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import Tags
from rankmem_agent.hooks.weights import Weights
from rankmem_agent.tap.library import Tap


@dataclass(frozen=True, slots=True)
class Hooked:
    """What was installed, as far as a test asks it."""

    guard: Guard
    steps: Steps


def hook(
    tap: Tap, is_compiling: Callable[[], bool], *, reads_frames: bool = True, weighs: bool = True
) -> Hooked:
    """Installs the hooks: modules from frames or from the modules' own hooks, with weights or without."""
    guard = Guard(0)
    steps, tags = Steps(tap), Tags(tap, is_compiling, guard)
    reader = tap.module_reader() if reads_frames else None
    modules = Modules(tap, is_compiling, guard, lambda: steps.phase_outside, reader)
    weights = Weights(tap, modules.names, lambda: steps.number, is_compiling, guard) if weighs else None
    if weights is not None:
        modules.when_named(weights.tree_named)
        weights.install()
    modules.when_named(tags.tree)
    modules.when_named(Sharding(tap, is_compiling, guard, steps).look)
    for each in (tags, modules, StepHooks(tap, is_compiling, guard, steps, tags, weights)):
        each.install()
    return Hooked(guard, steps)
