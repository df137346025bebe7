"""Trains a model under the hooks and torch.profiler, and writes down what the profiler's categories rest on.

Stage: tests; runs in a process of its own, where the tap records. Goes out: a JSON file for
``category_oracle``: Kineto's allocator events in order, the oracle's storages ("keys", numbered in order of
appearance), which node made which version of each, who said that it is a parameter or a gradient, and the
category of each version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import RecordScope, _EventType
from torch.profiler import ProfilerActivity, profile
from torch.profiler import _memory_profiler as oracle

from category_models import MODELS
from category_models_more import MODELS as MORE
from category_models_ranks import MODELS as ON_RANKS
from hooked import hook
from rankmem_agent.tap.library import Stat, Tap

ENGINE = "autograd::engine::evaluate_function"
OPTIMIZER = "torch/optim/"
MODELS_FILES = "category_models"


def record_window(tap: Tap, model: str, path: Path, *, warm_up: int, steps: int, device: str = "cpu") -> None:
    """Trains ``warm_up`` steps, then ``steps`` under the profiler; what the oracle says goes to ``path``."""
    if device == "cuda":
        torch.cuda.init()
        torch.set_default_device(device)
        tap.attach_cuda()
    guard = hook(tap, torch.compiler.is_compiling, weighs=False).guard
    step = (MODELS | MORE | ON_RANKS)[model]()
    options = {"record_shapes": True, "profile_memory": True, "with_stack": True}
    profiler = profile(activities=[ProfilerActivity.CPU], **options)
    for number in range(warm_up + steps):  # one loop, as a training has one: its lines make the data
        if number == warm_up:
            profiler.start()
            first = tap.stat(Stat.NEXT_SEQ)
        step()
    last = tap.stat(Stat.NEXT_SEQ)
    profiler.stop()
    if guard.failures:
        raise AssertionError("a hook failed")
    told = Told(profiler._memory_profile(), device)
    path.write_text(json.dumps({"first": first, "last": last, **told.facts()}))


class Told:
    """What a memory profile says, as plain lists."""

    def __init__(self, seen: Any, device: str) -> None:
        self._seen = seen
        self._device = device
        self._keys: dict[Any, int] = {}

    def facts(self) -> dict[str, Any]:
        """All of it; keys last, when all are numbered."""
        facts = {
            "events": self._events(),
            "makers": self._makers(),
            "witnesses": self._witnesses(),
            "told": [
                [self._number(key), version, 0 if category is None else category.value]
                for (key, version), category in self._seen._category_snapshot().items()
            ],
        }
        return facts | {"keys": [key.storage.ptr for key in self._keys]}

    def _number(self, key: Any) -> int:
        return -1 if key is None else self._keys.setdefault(key, len(self._keys))

    def _events(self) -> list[list[int]]:
        """[time_ns, address, signed bytes, key or -1] of each event of the device's allocator, in order."""
        events = [
            event
            for event in self._seen._op_tree.dfs()
            if event.typed[0] == _EventType.Allocation and event.typed[1].device.type == self._device
        ]
        events.sort(key=lambda event: event.start_time_ns)
        return [
            [
                each.start_time_ns,
                fields.ptr,
                fields.alloc_size,
                self._number(oracle.TensorKey.from_allocation(fields)),
            ]
            for each, fields in ((event, event.typed[1]) for event in events)
        ]

    def _makers(self) -> list[list[Any]]:
        """[key, version, time_ns, node, where the node is] for each version of each storage."""
        return [
            [self._number(key), 0 if edge.is_allocation else edge.input_version + 1,
             node._event.start_time_ns, node._event.name, where(node._event)]
            for node in self._seen._data_flow_graph.flow_nodes
            for key, edge in node._edges.items()
            if edge.is_allocation or edge.mutated
        ]  # fmt: skip

    def _witnesses(self) -> list[list[int]]:
        """[key, category, time_ns]: a module or optimizer with the storage is called; -1: AccumulateGrad."""
        witnesses = []
        for event in self._seen._op_tree.dfs():
            time_ns = event.start_time_ns if event.typed[0] == _EventType.PyCall else -1
            for pair in oracle._extract_parameters_and_gradients(event):
                for key, category in zip(
                    pair, (oracle.Category.PARAMETER, oracle.Category.GRADIENT), strict=True
                ):
                    if key is not None:
                        witnesses.append([self._number(key), category.value, time_ns])
        return witnesses


def where(event: Any) -> str:
    """Where an event runs: "engine" (autograd's, in no BACKWARD_FUNCTION), "optimizer" or "".

    A closure that an optimizer runs is the model's: its frame lies between the event and the optimizer's.
    """
    in_node = in_engine = in_optimizer = in_model = False
    while event is not None:
        kind, fields = event.typed
        if kind == _EventType.TorchOp:
            in_node |= fields.scope == RecordScope.BACKWARD_FUNCTION
            in_engine |= event.name.startswith(ENGINE)
        elif kind == _EventType.PyCall:
            in_model |= MODELS_FILES in event.name
            in_optimizer |= event.name.startswith(OPTIMIZER) and not in_model
        event = event.parent
    return "engine" if in_engine and not in_node else "optimizer" if in_optimizer else ""
