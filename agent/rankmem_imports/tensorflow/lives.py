"""Tensors' lives by TensorFlow's reference rule.

Stage: readers; the process of ``rankmem import``. In: the nodes of a step; out: each tensor with its
beginning, end, bytes and allocator. A tensor lives from its producer's start to the last end of a node that
holds it: the producer's own, or a reader's less one microsecond. Source:
tensorflow/python/client/timeline.py (2.21), with the same lives; a tensor that a later node of
the same name outputs again replaces the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from rankmem_imports.bounds import checked_bytes, checked_ns
from rankmem_protos.step_stats_pb2 import NodeExecStats

NODES_MAX: Final = 2_000_000
"""Nodes with inputs of one file: some 400 bytes each are held. The largest graphs have 100,000 a step."""

_LABEL: Final = re.compile(r"(.*) = (.*)\((.*)\)")
_UNKNOWN: Final = "unknown"
_RECEIVES: Final = "RecvTensor"


@dataclass(slots=True, kw_only=True)
class Tensor:
    """An output of a node; times in microseconds."""

    name: str
    node: str
    operator: str
    thread: int
    allocator: str
    size_bytes: int
    created_us: int
    node_ended_us: int
    ended_us: int
    """The last end of a node that holds it."""


class _Read(NamedTuple):
    inputs: str
    ended_us: int


class Lives:
    """Collects the nodes of a step."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        """By name, ``node`` or ``node:index``; in the order of their first appearance."""
        self.replaced = 0
        """Tensors whose name came again."""
        self.without_memory = 0
        """Outputs with neither bytes nor an allocator: not taken for tensors."""
        self._reads: list[_Read] = []

    def add(self, device: str, node: NodeExecStats) -> None:
        """Adds a node.

        Raises:
            ValueError: it has impossible values.
        """
        if len(self._reads) >= NODES_MAX:
            raise ValueError(f"more than {NODES_MAX} nodes")
        start_us = checked_ns(node.all_start_micros * 1000) // 1000
        end_us = checked_ns((node.all_start_micros + node.all_end_rel_micros) * 1000) // 1000
        if start_us < 0 or end_us < 0:
            raise ValueError("its time lies before 1970")
        operator, inputs = _label(node.timeline_label)
        for index, output in enumerate(node.output):
            allocation = output.tensor_description.allocation_description
            if not allocation.allocator_name and not allocation.requested_bytes:
                self.without_memory += 1
                continue
            name = f"{node.node_name}:{index}" if index else node.node_name
            self.replaced += name in self.tensors
            self.tensors[name] = Tensor(
                name=name,
                node=node.node_name,
                operator=_RECEIVES if node.node_name == _RECEIVES else operator,
                thread=node.thread_id,
                allocator=allocation.allocator_name,
                size_bytes=_size(allocation.requested_bytes),
                created_us=start_us,
                node_ended_us=end_us,
                ended_us=end_us,
            )
        if inputs and node.node_name != _RECEIVES and not _is_trace_of_gpu(device):
            self._reads.append(_Read(inputs, end_us))

    def end(self) -> dict[str, Tensor]:
        """The tensors with their ends, after all nodes."""
        for read in self._reads:
            for name in read.inputs.split(", "):
                tensor = self.tensors.get(name) or self.tensors.get(_sent_by(name))
                if tensor is not None:
                    tensor.ended_us = max(tensor.ended_us, read.ended_us - 1)
        self._reads.clear()
        return self.tensors


def changes(tensors: Iterable[Tensor]) -> list[tuple[int, int, Tensor]]:
    """(time in microseconds, bytes added or taken, tensor), in timeline.py's order: time, bytes, name."""
    found = [(t.created_us, t.size_bytes, t) for t in tensors]
    found += [(t.ended_us, -t.size_bytes, t) for t in tensors]
    found.sort(key=lambda change: (change[0], change[1], change[2].name))
    return found


def _label(label: str) -> tuple[str, str]:
    """Operator and inputs of ``name = op(input, ...)``."""
    match = _LABEL.match(label)
    return (match[2], match[3]) if match else (_UNKNOWN, "")


def _size(requested_bytes: int) -> int:
    if requested_bytes < 0:
        raise ValueError(f"a tensor of {requested_bytes} bytes")
    return checked_bytes(requested_bytes)


def _sent_by(name: str) -> str:
    """The node behind an input that partitioning named anew, ``node/_12``."""
    place = name.rfind("/_")
    return name[:place] if place > 0 else name


def _is_trace_of_gpu(device: str) -> bool:
    return "/stream:" in device or "/memcpy" in device
