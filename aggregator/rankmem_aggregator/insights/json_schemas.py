"""JSON schemas of what each insight answers: the shape of all answers, with the rows and figures of one.

Stage: query. In: the Arrow schema of an insight's rows, and of its figures here. Out: JSON schemas, draft 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from rankmem_aggregator.insights import (
    diagnose,
    diff,
    fit,
    fragmentation,
    imbalance,
    leaks,
    ledger,
    oom,
    whatif,
)  # fmt: skip
from rankmem_aggregator.insights.answer import JSON_SCHEMA

ROWS: Final[Mapping[str, pa.Schema]] = {
    "diagnose": diagnose.SCHEMA, "diff": diff.SCHEMA, "fit": fit.SCHEMA,
    "fragmentation": fragmentation.SCHEMA, "imbalance": imbalance.SCHEMA, "leaks": leaks.SCHEMA,
    "ledger": ledger.SCHEMA, "oom": oom.SCHEMA, "whatif": whatif.SCHEMA,
}  # fmt: skip
"""By question the columns of its rows."""
_INTS: Final = pa.list_(pa.int64())
_TEXTS: Final = pa.list_(pa.string())


def _figures(integers: str, texts: str = "", flags: str = "", **others: pa.DataType) -> pa.Schema:
    plain = ((integers, pa.int64()), (texts, pa.string()), (flags, pa.bool_()))
    fields = [(name, kind) for names, kind in plain for name in names.split()]
    return pa.schema([*fields, *others.items()])


FIGURES: Final[Mapping[str, pa.Schema]] = {
    "diagnose": _figures("num_findings", cannot_tell=pa.map_(pa.string(), pa.string())),
    "diff": _figures(
        "num_ranks base_steps head_steps base_steps_unknown head_steps_unknown base_highest_step "
        "head_highest_step base_highest_step_bytes head_highest_step_bytes num_parts num_parts_shown "
        "parts_difference_bytes", "base head input",
        "is_highest_beyond",
        base_input_bytes=_INTS, head_input_bytes=_INTS,
        base_input_elements=_INTS, head_input_elements=_INTS,
        left_out=_TEXTS, retyped=_TEXTS, renamed=_TEXTS, other_lists=_TEXTS,
        ranks_worse=_INTS, ranks_unclear=_INTS, ranks_better=_INTS,
        moved=_TEXTS, replaced=_TEXTS, unmatched=_TEXTS,
    ),
    "fit": _figures(
        "attempt rank num_sizes num_blocks num_matched total_bytes usable_bytes largest_size "
        "largest_surely_size foreach_bytes higher_step higher_step_bytes",
        "what device as_device not_replayed first_dimension_of", "has_workspaces is_edited evaluates",
        moved=_TEXTS, below_share=pa.float64(), above_share=pa.float64(), largest_times=pa.float64(),
        largest_surely_times=pa.float64(), recorded_sizes=_INTS, recorded_input_bytes=_INTS,
        recorded_steps=_INTS, shares_at_peak=pa.map_(pa.string(), pa.float64()),
    ),
    "fragmentation": _figures(
        "attempt rank recorded_reserved_peak_bytes live_peak_bytes needed_bytes needed_within_bytes "
        "cache_bytes stuck_bytes packed_bytes num_allocations num_same_address reserved_difference_bytes "
        "num_older num_unknown_frees num_failed largest_failed_bytes",
        "device settings",
    ),
    "imbalance": _figures(
        "num_ranks highest_rank lowest_rank difference_bytes num_with_coordinates num_standing_out "
        "odd_host_bytes num_left_out num_small small_rank small_bytes peak_bytes peak_without_bytes",
        "odd_host device_type", "is_inferred", parts=pa.map_(pa.string(), pa.int64()),
        shares=pa.map_(pa.string(), pa.float64()), partly_known=pa.map_(pa.string(), pa.int64()),
    ),
    "leaks": _figures(
        "num_leaks num_negligible num_bounded num_ranks least_steps_looked_at steps_left steps_left_low "
        "steps_left_high "
        "usable_bytes full_rank",
        "full_device",
        devices=pa.list_(pa.struct(_figures(
            "attempt rank peak_bytes usable_bytes steps_left steps_left_low steps_left_high",
            "device verdict",
            bytes_per_step=pa.float64(), low_bytes_per_step=pa.float64(), high_bytes_per_step=pa.float64(),
        ))),
    ),
    "ledger": _figures(
        "attempt rank num_ranks at_ns used_bytes device_total_bytes pytorch_bytes communicators_bytes "
        "runtime_bytes component_bytes unexplained_bytes other_processes_bytes outside_allocators_bytes "
        "num_unknown samples_apart_ns",
        "device finding", "is_device", unknown_parts=_TEXTS,
    ),
    "oom": _figures(
        "attempt rank seq failure num_failures failure_of_rank request_bytes live_bytes reserved_bytes "
        "unused_bytes largest_free_bytes device_free_bytes device_total_bytes others_bytes capacity_bytes "
        "capacity_low_bytes needed_within_bytes alive_with_request_bytes num_older lacks_bytes leaked_bytes "
        "highest_step_before_bytes",
        "device line operator kind remedy why_no_replay", "on_host is_reproduced is_proven is_leak_sure",
        kinds=_TEXTS,
    ),
    "whatif": _figures(
        "attempt rank step num_blocks peak_bytes fit_bytes usable_bytes higher_step higher_step_bytes",
        "device peak_phase sharded",
        "is_steady fits_as_it_is", smallest_set=_TEXTS,
    ),
}  # fmt: skip
"""By question its figures; an answer has those that are known."""


def schema_of(question: str) -> dict[str, Any]:
    """The JSON schema of an insight's answers, draft 7: that of all answers with its own rows and figures.

    Args:
        question: the verb.
    """
    rows = _object(ROWS[question])
    own = {
        "question": {"const": question},
        "figures": _object(FIGURES[question]),
        "rows": {"type": "array", "items": {**rows, "required": list(ROWS[question].names)}},
    }
    return {
        **JSON_SCHEMA,
        "title": f"An answer of rankmem {question}",
        "properties": JSON_SCHEMA["properties"] | own,
    }


def _object(schema: pa.Schema | pa.StructType) -> dict[str, Any]:
    fields = {each.name: _value(each.type) for each in schema}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _value(kind: pa.DataType) -> dict[str, Any]:
    """What a value of an Arrow type is in JSON; each may be null."""
    if kinds.is_struct(kind):
        return _or_null(_object(kind))
    if kinds.is_map(kind):
        return _or_null({"type": "object", "additionalProperties": _value(kind.item_type)})
    if kinds.is_list(kind):
        return _or_null({"type": "array", "items": _value(kind.value_type)})
    if kinds.is_boolean(kind):
        return {"enum": [True, False, None]}
    if kinds.is_floating(kind):
        return _or_null({"type": "number"})
    return _or_null({"type": "integer" if kinds.is_integer(kind) else "string"})


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}
