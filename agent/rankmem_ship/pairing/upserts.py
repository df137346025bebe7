"""Rows about who and where: session, host_info, rank_info and device_info, replaced as more is known.

Stage: pairing; shipper process. In: meta.json's facts, NOTE and DEVICE records, the pairing state and the
clock's estimate. Out: rows for the keyed tables; a later row replaces an earlier one whole, so every row
carries all that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rankmem_agent.spool.exits import Exit, end_of
from rankmem_agent.spool.meta import SpoolMeta
from rankmem_protos.column_bounds import fits
from rankmem_protos.tables import DEVICE_INFO, HOST_INFO, RANK_INFO, SESSION, STEADY_COUNTS, Table
from rankmem_ship.pairing.devices import device_name
from rankmem_ship.pairing.state import Array, PairingState
from rankmem_ship.spool_reader.string_table import StringTable, json_object

_DEVICE_FACTS: Final = ("name", "uuid", "total_bytes", "allocator", "settings", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEstimate:
    """A host's clock against the aggregator's."""

    offset_ns: int
    """Add to the host's times to get the aggregator's."""
    error_ns: int
    """The offset is right within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a rank's process."""

    at_ns: int
    """Host time."""
    exited: Exit | None = None
    """How, where known."""
    wrote_end: bool = False
    """By the control page it wrote END, which may stand in a hole of its log."""


def session_row(meta: SpoolMeta, notes: dict[str, Any], ended_at_ns: int | None) -> dict[str, Any]:
    """The session as this rank knows it; ``ended_at_ns`` is the rank's own end."""
    row: dict[str, Any] = {"source": "live", "started_at_ns": meta.realtime_ns}
    row |= _columns(SESSION, meta.session) | _columns(SESSION, notes.get("session"))
    return row | {"session_id": meta.session_id, "ended_at_ns": ended_at_ns}


def host_row(meta: SpoolMeta, notes: dict[str, Any]) -> dict[str, Any]:
    """The host that this rank ran on."""
    row: dict[str, Any] = {
        "host_name": "",
        **_columns(HOST_INFO, meta.host),
        **_columns(HOST_INFO, notes.get("host")),
    }
    return row | {"host_uid": _host_uid(meta)}


def rank_row(
    meta: SpoolMeta,
    notes: dict[str, Any],
    state: PairingState,
    clock: ClockEstimate | None,
    ended: Ended | None,
) -> dict[str, Any]:
    """The rank as it stands in ``state``; ended None: it still runs."""
    row: dict[str, Any] = {"started_at_ns": meta.realtime_ns, "pid": meta.pid}
    row |= _columns(RANK_INFO, meta.rank_row) | _columns(RANK_INFO, notes.get("rank"))
    unexplained = unexplained_bytes(state)
    whole = state.num_lost == 0 and unexplained == 0 and state.implied_free_bytes == 0
    row |= {
        "session_id": meta.session_id,
        "attempt": meta.attempt,
        "rank": meta.rank,
        "spool_id": meta.spool_id,
        "host_uid": _host_uid(meta),
        "events": state.num_events,
        "events_lost": None if state.is_off else state.num_lost,
        "unexplained_bytes": None if state.is_off else unexplained,
        "complete": whole and not state.is_off,
    }
    row |= steady_counts(state)
    if clock is not None:
        row |= {"clock_offset_ns": clock.offset_ns, "clock_error_ns": clock.error_ns}
    exception = row.pop("exception", None)
    if ended is not None:
        found = end_of(ended.exited, exception, saw_end=state.saw_end or ended.wrote_end)
        row |= {"ended_at_ns": ended.at_ns, "end_reason": found.reason}
        row |= {"exit_code": found.exit_code, "exception": found.exception}
    return row


def steady_counts(state: PairingState) -> dict[str, int]:
    """What rank_info has of steps that were not observed since they were known; empty without any so far."""
    if not (state.is_steady or state.template_blocks or state.prefix_blocks or state.steady_misses):
        return {}
    return {name: getattr(state, name) for name in STEADY_COUNTS}


def unexplained_bytes(state: PairingState) -> int:
    """Replay minus allocator where its counters were seen, plus blocks whose end was only implied."""
    return int(state.devices["unexplained"].sum()) + state.implied_free_bytes


def device_rows(meta: SpoolMeta, devices: Array, strings: StringTable) -> list[dict[str, Any]]:
    """One row for each device of the rank."""
    rows = []
    for device in devices:
        facts = json_object(strings.text(int(device["name_id"])))
        row: dict[str, Any] = {key: facts[key] for key in _DEVICE_FACTS if facts.get(key) is not None}
        row |= {"session_id": meta.session_id, "attempt": meta.attempt, "rank": meta.rank}
        rows.append(_typed(DEVICE_INFO, row | {"device": device_name(int(device["code"]))}))
    return rows


def merged_notes(note_ids: tuple[int, ...], strings: StringTable) -> dict[str, Any]:
    """The NOTE records' objects, later ones over earlier ones, one level deep."""
    merged: dict[str, Any] = {}
    for note_id in note_ids:
        for key, value in json_object(strings.text(note_id)).items():
            before = merged.get(key)
            both = isinstance(before, dict) and isinstance(value, dict)
            merged[key] = before | value if both else value
    return merged


def _host_uid(meta: SpoolMeta) -> str:
    return str(
        meta.host.get("host_uid") or meta.rank_row.get("host_uid") or meta.host.get("host_name") or "unknown"
    )


def _columns(table: Table, facts: object) -> dict[str, Any]:
    """Those of the facts that are columns of the table and have a value."""
    if not isinstance(facts, dict):
        return {}
    names = set(table.column_names())
    return _typed(table, {key: value for key, value in facts.items() if key in names and value is not None})


def _typed(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    """The row with whole numbers where the column wants them and text where it wants text; else left out."""
    columns = {column.name: column for column in table.columns}
    fixed: dict[str, Any] = {}
    for key, value in row.items():
        kind = str(columns[key].type)
        try:
            made = int(value) if kind in ("int32", "int64") else bool(value) if kind == "bool" else str(value)
        except (TypeError, ValueError, OverflowError):
            continue  # a fact of foreign origin that does not fit its column is not known
        if isinstance(made, str | bool) or fits(columns[key], made):
            fixed[key] = made
    return fixed
