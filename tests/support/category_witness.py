"""Trainings that write down themselves what their tensors are: a second account of the categories.

Stage: tests; runs in a process of its own under the tap and the agent's hooks, on rank 0 of two. Where the
script holds a tensor and knows what it is (a layer its whole weight in forward, the loop its gradients before
the optimizer's step), it notes the place in the log, the address and the name of the category. Nothing here
asks torch.profiler, whose account breaks off over FSDP2, and nothing asks the hooks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.nn import functional

import category_models_ranks as ranks
from hooked import Hooked, hook
from rankmem_agent.tap.library import Stat, Tap

STEPS = 4


class Witness:
    """What was seen: (place in the log, address, category)."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self.seen: list[tuple[int, int, str]] = []

    def note(self, category: str, tensor: Any) -> None:
        """The tensor is that now."""
        own = getattr(tensor, "_local_tensor", tensor)
        self.seen.append((self._tap.stat(Stat.NEXT_SEQ), own.data_ptr(), category))

    def watch(self, model: nn.Module) -> None:
        """Notes each layer's weight, input and output in forward; of FSDP2 whole gradients."""
        watched = set()

        def ran(layer: nn.Module, args: Any, output: torch.Tensor) -> None:
            if isinstance(layer, nn.Linear):
                self.note("parameter", layer.weight)
                self.note("activation", output)
                if not args[0].requires_grad:  # the data, or what FSDP casts it to
                    self.note("input", args[0])
                if isinstance(model, FSDPModule) and layer.weight not in watched:
                    watched.add(layer.weight)
                    layer.weight.register_post_accumulate_grad_hook(
                        lambda weight: self.note("gradient", weight.grad)
                    )

        for layer in model.modules():
            layer.register_forward_hook(ran)

    def flat_parameters(self) -> None:
        """Notes FSDP1's whole parameters whenever they have been gathered, in backward, too."""
        genuine = FlatParamHandle._use_unsharded_flat_param

        def noting(its: FlatParamHandle, padded: torch.Tensor) -> None:
            genuine(its, padded)
            self.note("parameter", padded)

        FlatParamHandle._use_unsharded_flat_param = noting

    def flat_gradients(self, model: nn.Module) -> None:
        """Notes what FSDP1 keeps between two micro-batches: whole gradients, and sums of its own part."""
        for each in model.modules():
            flat = getattr(getattr(each, "_handle", None), "flat_param", None)
            for gradient in (getattr(flat, "grad", None), getattr(flat, "_saved_grad_shard", None)):
                if gradient is not None:
                    self.note("gradient", gradient)

    def gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes the parameters and their gradients, after a backward."""
        for parameter in parameters_of(optimizer):
            if parameter.numel() == 0:  # FSDP1: the other rank's
                continue
            self.note("parameter", parameter)
            if parameter.grad is not None:  # FSDP2 gives it with the last micro-batch
                self.note("gradient", parameter.grad)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step, with its state after it."""
        optimizer.step()
        for parameter in parameters_of(optimizer):
            if parameter.numel():
                self.note("optimizer_state", optimizer.state[parameter]["exp_avg"])
                self.note("optimizer_state", optimizer.state[parameter]["exp_avg_sq"])


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All of an optimizer's parameters."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def hooked(tap: Tap) -> Hooked:
    """The hooks, installed without what reads frames or weights."""
    return hook(tap, torch.compiler.is_compiling, reads_frames=False, weighs=False)


def run(tap: Tap, name: str, folder: Path) -> None:
    """Trains as ``category_models_ranks`` does, and leaves witness.json in the folder."""
    guard = hooked(tap).guard
    witness = Witness(tap)
    witness.flat_parameters()
    training = ranks.joined(name)
    witness.watch(training.model)
    for _ in range(STEPS):
        for is_last, (data, target) in training.micro_batches():
            witness.note("input", data)
            witness.note("input", target)
            with training.communicating(is_last):
                functional.cross_entropy(training.model(data).float(), target).backward()
            witness.gradients(training.optimizer)
            witness.flat_gradients(training.model)
        witness.step(training.optimizer)
        training.optimizer.zero_grad()
    if guard.failures:
        raise AssertionError("a hook failed")
    (folder / "witness.json").write_text(json.dumps(witness.seen))
