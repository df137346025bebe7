"""The rounds of a log: where forwards begin and end, where backward begins, where optimizer steps end.

Stage: pairing; shipper process, pure functions over arrays. In: a batch's records and calls. Out: places of
the log, ascending, by which lives of blocks are judged (rankmem_ship.pairing.categories_lives).

A *run* of forward is what modules compute from the first call of forward after any other call to the next
call that is none of forward's. It *records* if a call in it made an autograd node: a run that records none
is inference, or the target of something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import Kind, Phase
from rankmem_ship.pairing.calls import Calls
from rankmem_ship.pairing.state import ABSENT, Array
from rankmem_ship.spool_reader.segments import named

NEVER: Final = np.iinfo(np.int64).max
"""A place after all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Places in the log (seq), ascending. The first of breaks, nodes and steps is the last one before the
    batch, or ABSENT."""

    breaks: Array
    """Where a call began that is none of forward's, or a step ended: a run of forward is over."""
    nodes: Array
    """Where calls of forward ended that made autograd nodes."""
    runs: Array
    """Where runs of forward begin."""
    idle: Array
    """Where runs are over that recorded nothing."""
    engines: Array
    """Where backward begins."""
    optimizers: Array
    """Where a call began that is none of an optimizer's, or a step ended: an optimizer's work is over."""
    steps: Array
    """Where training steps ended."""
    last_phase: int
    """Of the last call begun."""

    def records_at(self, made: Array, until: Array) -> Array:
        """Whether the run that each block was made in has recorded a node before these places."""
        recorded: Array = last_before(self.nodes, until) > last_before(self.breaks, made)
        return recorded

    def last(self) -> tuple[int, int, int, int]:
        """The argument ``before`` of :func:`rounds_of` for the next batch."""
        return self.last_phase, int(self.breaks[-1]), int(self.nodes[-1]), int(self.steps[-1])


def rounds_of(before: tuple[int, int, int, int], records: Array, seq: Array, calls: Calls) -> Rounds:
    """The places of a batch.

    Args:
        before: :meth:`Rounds.last` of the batch before: phase, break, node and step, ABSENT for none.
    """
    kind = records["kind"]
    is_begin = (kind == Kind.CALL_BEGIN) | (kind == Kind.CALL_FORWARD)
    is_step = kind == Kind.STEP
    at = np.flatnonzero(is_begin | is_step)
    phase = np.where(is_begin, named(records, Kind.CALL_BEGIN)["phase"], Phase.OTHER)[at].astype(np.int64)
    phase[kind[at] == Kind.CALL_FORWARD] = Phase.BACKWARD
    places = seq[at]
    previous = np.concatenate([[before[0]], phase[:-1]]) if len(phase) else phase
    in_forward, was_forward = phase == Phase.FORWARD, previous == Phase.FORWARD
    made_nodes = calls.ended & (calls.sequence_first != ABSENT)
    made_nodes &= calls.table["phase"] == Phase.FORWARD
    breaks = np.concatenate([[before[1]], places[~in_forward]])
    nodes = np.concatenate([[before[2]], np.sort(calls.end_seq[made_nodes])])
    over = places[~in_forward & was_forward]
    is_idle = last_before(nodes, over) <= last_before(breaks, over)
    return Rounds(
        breaks=breaks,
        nodes=nodes,
        runs=places[in_forward & ~was_forward],
        idle=over[is_idle],
        engines=places[(phase == Phase.BACKWARD) & (previous != Phase.BACKWARD)],
        optimizers=places[phase != Phase.OPTIMIZER],
        steps=np.concatenate([[before[3]], seq[is_step]]),
        last_phase=int(phase[-1]) if len(phase) else before[0],
    )


def last_before(ascending: Array, seq: Array) -> Array:
    """The last place before each of these; the first place where there is none."""
    last: Array = ascending[np.maximum(np.searchsorted(ascending, seq, side="left") - 1, 0)]
    return last


def first_after(ascending: Array, seq: Array) -> Array:
    """The first place after each of these, NEVER for none."""
    first: Array = np.append(ascending, NEVER)[np.searchsorted(ascending, seq, side="right")]
    return first


def num_between(ascending: Array, first: Array, last: Array) -> Array:
    """How many places lie between each two."""
    number = np.searchsorted(ascending, last, side="left") - np.searchsorted(ascending, first, side="right")
    between: Array = np.maximum(number, 0)
    return between
