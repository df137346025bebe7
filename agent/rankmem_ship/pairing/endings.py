"""The end of a device's recording within a log: blocks alive then are followed no more.

Stage: pairing; shipper process, pure functions over arrays. A second DEVICE record of a device means that its
recording ended there, or begins anew (on the CPU: ``tap, until CUDA was used``). Its blocks would look alive
for ever, so each is given an end at that record: ``freed_ns`` is the record's time, ``freed_seq`` its
position, which no row of ``memory_event`` has. The device's totals fall to zero with them. An OFF record of
all events is such an end of every device.
"""

from __future__ import annotations

import numpy as np

from rankmem_agent.spool.layout import Action, Kind, Missing
from rankmem_ship.pairing.blocks import match_blocks
from rankmem_ship.pairing.devices import ADDRESS_BITS, block_keys, dense_numbers, device_codes
from rankmem_ship.pairing.state import Array, joined, rows_at
from rankmem_ship.spool_reader.segments import named


def with_endings(
    live: Array, devices: Array, records: Array, seq: Array, time_ns: Array
) -> tuple[Array, Array, Array]:
    """(records, seq, time_ns) with a PREEXISTING free of each block put behind the record that ends it.

    Args:
        live: BLOCK_DTYPE, alive before the batch.
        devices: DEVICE_DTYPE, before the batch but with all that occur in it.
    """
    added = 0
    for ending in _endings(devices, records):
        place = int(ending) + added
        freed = _frees(live, devices, records, place)
        added += len(freed)
        order = np.concatenate(
            [np.arange(place + 1), np.full(len(freed), place), np.arange(place + 1, len(seq))]
        )
        seq, time_ns = seq[order], time_ns[order]
        records = joined([records[: place + 1], freed, records[place + 1 :]])
    return records, seq, time_ns


def _endings(devices: Array, records: Array) -> Array:
    """Places of the records that end a device's recording, or that of all."""
    is_off = (records["kind"] == Kind.OFF) & (records["action"] == Missing.EVENTS)
    places = np.concatenate([_repeated_devices(devices, records), np.flatnonzero(is_off)])
    return np.sort(places)


def _repeated_devices(devices: Array, records: Array) -> Array:
    """Places of the DEVICE records that are not their device's first."""
    described = np.flatnonzero(records["kind"] == Kind.DEVICE)
    codes = device_codes(records[described])
    again = np.zeros(len(described), np.bool_)
    for code in np.unique(codes):
        own = np.flatnonzero(codes == code)
        first_is_new = devices["name_id"][devices["code"] == code][0] == 0
        again[own[1:] if first_is_new else own] = True
    return described[again]


def _frees(live: Array, devices: Array, records: Array, place: int) -> Array:
    """Records that free the blocks alive at that place of the device of ``records[place]``, or of all."""
    ending = records[place : place + 1]
    if ending["kind"][0] != Kind.OFF:
        return _frees_of(live, devices, ending, records[:place])
    of_each = []
    for code in devices["code"]:
        device = ending.copy()
        device["device_type"], device["device_index"] = code >> 8, code & 0xFF
        of_each.append(_frees_of(live, devices, device, records[:place]))
    return joined([records[:0], *of_each])


def _frees_of(live: Array, devices: Array, device: Array, before: Array) -> Array:
    """The same of the device of this record, given what stands before it."""
    number = int(dense_numbers(devices, device_codes(device))[0])
    moves = (before["kind"] == Kind.EVENT) | (before["kind"] == Kind.PREEXISTING)
    moves &= (before["action"] <= Action.FREE_COMPLETED) & (device_codes(before) == device_codes(device))
    own = rows_at(before, moves)
    keys = block_keys(np.full(len(own), number), named(own, Kind.EVENT)["address"])
    is_alloc, is_free = own["action"] == Action.ALLOC, own["action"] == Action.FREE_COMPLETED
    matches = match_blocks(live["key"], keys, is_alloc, is_free)
    gone = np.concatenate([matches.block[is_free], matches.implied_free])
    all_keys = np.concatenate([live["key"], keys[is_alloc]])
    alive = np.ones(len(all_keys), np.bool_)
    alive[gone[gone >= 0]] = False
    ended = np.unique(all_keys[alive & (all_keys >> np.uint64(ADDRESS_BITS) == np.uint64(number))])
    freed = np.zeros(len(ended), before.dtype)
    for field in ("device_type", "device_index", "time_ns", "thread"):
        freed[field] = device[field][0]
    freed["kind"], freed["action"] = Kind.PREEXISTING, Action.FREE_COMPLETED
    named(freed, Kind.PREEXISTING)["address"] = ended & np.uint64((1 << ADDRESS_BITS) - 1)
    return freed
