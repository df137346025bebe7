"""What a DETAIL record changes in what pairing knows: from it on more or less is recorded around the events.

Stage: pairing; shipper process, pure functions. A batch begins with such a record or has none. Bytes go on
as they were. While operators are not observed no category is inferred and no phase is known; what was seen
before proves nothing about what follows the stretch that nobody has seen; but after steps that are known as
a whole, all is as it was after the last one that was observed.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from rankmem_agent.spool.layout import Detail, Kind, Outcome
from rankmem_ship.pairing.categories_rules import Source
from rankmem_ship.pairing.state import ABSENT, THREAD_DTYPE, Array, PairingState
from rankmem_ship.spool_reader.segments import named

_OPEN: Final = (Source.CANDIDATE, Source.PENDING, Source.SCRATCH, Source.SETUP)
"""Of blocks whose category is decided by how they live."""


def at_detail(state: PairingState, records: Array, seq: Array) -> PairingState:
    """The state from the DETAIL records on that a batch begins with; the same without any."""
    if not len(records) or records["kind"][0] != Kind.DETAIL:
        return state
    is_other = records["kind"] != Kind.DETAIL
    last = int(is_other.argmax()) - 1 if is_other.any() else len(records) - 1
    said = named(records[: last + 1], Kind.DETAIL)
    now = int(said["detail"][-1])
    state = dataclasses.replace(state, is_doubtful=False)
    if now == Detail.FULL:
        is_mixed = state.is_mixed or bool((said["outcome"] == Outcome.MISSED).any())
        if state.is_steady and not is_mixed:
            return dataclasses.replace(state, is_reduced=False, is_steady=False)
        full = _full(state, int(seq[last])) if state.is_reduced else state
        return dataclasses.replace(full, is_steady=False, is_mixed=is_mixed)
    reduced = state if state.is_reduced else _reduced(state)
    if now == Detail.STEADY:
        # Steps that nobody has seen lie before it where it was reduced otherwise.
        seen = _full(state, int(seq[last])) if state.is_reduced and not state.is_steady else reduced
        return dataclasses.replace(seen, is_reduced=True, is_steady=True)
    return dataclasses.replace(reduced, is_steady=False, threads=np.zeros(0, THREAD_DTYPE))


def _reduced(state: PairingState) -> PairingState:
    """The allocator's last figures, which come with calls, hold no more; nor, unless the steps that follow
    are known, does a thread's last phase."""
    devices, categories = state.devices.copy(), state.categories.copy()
    devices["allocated"] = devices["active"] = ABSENT
    categories["source"][np.isin(categories["source"], _OPEN)] = Source.RULE
    return dataclasses.replace(state, is_reduced=True, devices=devices, categories=categories)


def _full(state: PairingState, seq: int) -> PairingState:
    """What was computed meanwhile from parameters, and from gradients, may not be used yet."""
    return dataclasses.replace(
        state,
        is_reduced=False,
        threads=np.zeros(0, THREAD_DTYPE),
        last_nodes_seq=seq,
        last_engine_seq=seq - 1,
    )
