"""The model: its modules and parameters, as the hooks recorded them.

Stage: pairing; shipper process, pure functions over arrays. All of it is kept, so that it can be sent to
another database; a later record of the same text replaces the earlier one.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from rankmem_agent.spool.layout import STRING_BYTES_MAX, Kind
from rankmem_ship.pairing.categories_tags import blocks_at
from rankmem_ship.pairing.devices import dense_numbers, device_codes
from rankmem_ship.pairing.state import ABSENT, MODULE_DTYPE, WEIGHT_DTYPE, Array, joined, of_kind, rows_at
from rankmem_ship.spool_reader.plausible import SIZE_BYTES_MAX
from rankmem_ship.spool_reader.segments import named
from rankmem_ship.spool_reader.string_table import StringTable, json_object

INPUTS_MAX: Final = 1024
"""Tensors of a call that a damaged record may claim, at most."""


def with_modules(modules: Array, records: Array) -> Array:
    """``modules`` with those of the batch's MODULE records that are new, not sent yet."""
    found = of_kind(records, Kind.MODULE)
    if not len(found):
        return modules
    rows = np.zeros(len(found), MODULE_DTYPE)
    rows["path"], rows["class_name"] = found["path"].astype(np.uint32), found["class_name"]
    rows["frozen"] = found["is_frozen"] != 0
    both = joined([modules, rows])
    _, first = np.unique(both["path"], return_index=True)
    return rows_at(both, first)


def with_weights(weights: Array, records: Array, seq: Array, blocks: Array, devices: Array) -> Array:
    """``weights`` with those of the batch's WEIGHT records, not sent yet, in place of earlier records.

    Args:
        blocks: BLOCK_DTYPE, those alive at some time of the batch, with the stacks of ended calls.
        devices: DEVICE_DTYPE, after the batch.
    """
    places = np.flatnonzero(records["kind"] == Kind.WEIGHT)
    if not len(places):
        return weights
    found = named(rows_at(records, places), Kind.WEIGHT)
    rows = np.zeros(len(found), WEIGHT_DTYPE)
    rows["text"], rows["size"] = found["facts"], found["size_bytes"]
    rows["grad_size"] = found["grad_size_bytes"]
    codes = device_codes(found)
    followed = np.flatnonzero(np.isin(codes, devices["code"]))
    block = np.full(len(found), ABSENT)
    numbers = dense_numbers(devices, codes[followed])
    block[followed] = blocks_at(blocks, numbers, found["address"][followed], seq[places[followed]])
    rows["stack"] = np.append(blocks["stack"], np.zeros(1, np.uint32))[block]
    both = joined([weights, rows])
    _, last = np.unique(both["text"][::-1], return_index=True)
    return rows_at(both, np.sort(len(both) - 1 - last))


def weight_rows(weights: Array, strings: StringTable, hashes: Array) -> list[dict[str, Any]]:
    """Rows of ``weight`` without those of the rank, one for each name: the last record's.

    Args:
        hashes: content hash of each one's stack.
    """
    rows: dict[str, dict[str, Any]] = {}
    for weight, stack_hash in zip(weights, hashes, strict=True):
        facts = json_object(strings.text(int(weight["text"])))
        name = str(facts.get("name") or "")
        shape = facts.get("shape")
        rows.pop(name, None)
        rows[name] = {
            "name": name,
            "size_bytes": int(weight["size"]),
            "grad_size_bytes": int(weight["grad_size"]),
            "dtype": None if facts.get("dtype") is None else str(facts["dtype"]),
            "shape": None if shape is None else shape if isinstance(shape, str) else json.dumps(shape),
            "stack_id": int(stack_hash) if weight["stack"] else None,
        }
    return list(rows.values())


def input_tensors(text: str | None) -> list[dict[str, Any]]:
    """Columns of ``step_input`` from an INPUT record's text, by tensor; none where it is damaged."""
    found = json_object(text).get("tensors")
    rows: list[dict[str, Any]] = []
    for each in found[:INPUTS_MAX] if isinstance(found, list) else []:
        if not isinstance(each, list) or len(each) != 4:
            continue
        name, dtype, shape, size_bytes = each
        is_size = type(size_bytes) is int and 0 <= size_bytes <= SIZE_BYTES_MAX
        rows.append(
            {
                "argument": str(name)[:STRING_BYTES_MAX],
                "dtype": str(dtype)[:STRING_BYTES_MAX],
                "shape": json.dumps(shape)[:STRING_BYTES_MAX],
                "size_bytes": size_bytes if is_size else None,
            }
        )
    return rows
