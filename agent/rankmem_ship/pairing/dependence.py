"""Where in the log tensors may exist that depend on a parameter although no autograd node shows it.

Stage: pairing; shipper process, pure functions over arrays. In: a batch's calls and records. Out: an answer
for each place of the log that is asked about.

A call that makes no node while autograd records takes nothing that needs a gradient. It may yet depend on a
parameter: through ``argmax`` or a comparison, whose results need none, through ``detach()``, through a
forward without autograd, or through a parameter that is frozen. For that, something must have been computed
from parameters before: a call that made nodes, one of a forward without autograd, or, while a parameter is
frozen, any call of forward. What was computed is as a rule used up when autograd's engine runs, or the
optimizer: from there on the next batch may be made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rankmem_agent.spool.layout import Kind, Phase
from rankmem_ship.pairing.calls import Calls
from rankmem_ship.pairing.state import ABSENT, Array
from rankmem_ship.spool_reader.segments import named


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Places in the log (seq), ascending; the first of each is the last one before the batch, or ABSENT."""

    nodes: Array
    """Where calls ended that made autograd nodes, other than in backward, or that ran in a module's forward
    without autograd."""
    forwards: Array
    """Where calls in a module's forward ended."""
    engine: Array
    """Where calls of autograd's engine or of an optimizer began."""
    optimizer: Array
    """Where calls of an optimizer, or its ranges (step, zero_grad), began: gradients are used up."""
    outside: Array
    """Where calls ended that the engine did not run, or an optimizer's range began: a backward is over."""

    def is_possible(self, seq: Array, *, has_frozen: bool) -> Array:
        """Whether a call that ended at each of these places may depend on a parameter without a node.

        Args:
            has_frozen: some parameter wants no gradient.
        """
        computed = _last(self.nodes, seq)
        if has_frozen:
            computed = np.maximum(computed, _last(self.forwards, seq))
        possible: Array = computed > _last(self.engine, seq)
        return possible

    def is_from_gradients(self, seq: Array) -> Array:
        """Whether a call that ended at each of these places may depend on gradients: none was used since."""
        possible: Array = _last(self.engine, seq) > _last(self.optimizer, seq)
        return possible

    def is_first(self, seq: Array) -> Array:
        """Whether neither a module nor autograd's engine has run before these places."""
        first: Array = np.maximum(_last(self.forwards, seq), _last(self.engine, seq)) == ABSENT
        return first

    def is_forward_between(self, first: Array, last: Array) -> Array:
        """Whether a call of forward, or one that made nodes, ended between these places."""
        latest = np.maximum(_last(self.nodes, last), _last(self.forwards, last))
        between: Array = latest > first
        return between

    def is_backward_over(self, first: Array, last: Array) -> Array:
        """Whether a backward that ran at the first place was over at the last."""
        over: Array = _last(self.outside, last) > first
        return over

    def last(self) -> tuple[int, ...]:
        """The last place of each, as :func:`dependence_of` takes them."""
        places = (self.nodes, self.forwards, self.engine, self.outside, self.optimizer)
        return tuple(int(each[-1]) for each in places)


def dependence_of(
    before: tuple[int, ...],
    records: Array,
    seq: Array,
    calls: Calls,
    are_optimizers: Callable[[Array], Array],
) -> Dependence:
    """The places of a batch.

    Args:
        before: the last place of nodes, forwards, engine, outside and optimizer before it, ABSENT for none.
        records: the batch's; seq: their places in the log; calls: its calls.
        are_optimizers: which names of ranges are an optimizer's.
    """
    phase = calls.table["phase"]
    made_nodes = calls.ended & (calls.sequence_first != ABSENT) & (phase != Phase.BACKWARD)
    in_forward = calls.ended & (phase == Phase.FORWARD)
    made_nodes |= in_forward & ~calls.with_grad  # a target computed without autograd, and used with it
    kind, began_in = records["kind"], named(records, Kind.CALL_BEGIN)["phase"]
    optimizer = (kind == Kind.CALL_BEGIN) & (began_in == Phase.OPTIMIZER)
    engine = optimizer | ((kind == Kind.CALL_BEGIN) & (began_in == Phase.BACKWARD))
    engine |= kind == Kind.CALL_FORWARD
    ranges = np.flatnonzero(kind == Kind.MARKER_BEGIN)
    ranges = ranges[are_optimizers(named(records, Kind.MARKER_BEGIN)["name"][ranges])]
    not_engine = calls.ended & (phase != Phase.BACKWARD)
    return Dependence(
        nodes=_from(before[0], calls.end_seq[made_nodes]),
        forwards=_from(before[1], calls.end_seq[in_forward]),
        engine=_from(before[2], seq[engine]),
        outside=_from(before[3], np.concatenate([calls.end_seq[not_engine], seq[ranges]])),
        optimizer=_from(before[4], np.concatenate([seq[optimizer], seq[ranges]])),
    )


def _from(before: int, places: Array) -> Array:
    return np.concatenate([np.array([before], np.int64), np.sort(places)])


def _last(ascending: Array, seq: Array) -> Array:
    """The last place before each of these."""
    last: Array = ascending[np.maximum(np.searchsorted(ascending, seq, side="left") - 1, 0)]
    return last
