"""Reports what a session did not record because it was switched off.

Stage: render. In: what the ranks had switched off (``RANKMEM_DETAIL``, ``RANKMEM_STACKS``,
``RANKMEM_MODULES``), or had for some steps (``rankmem control``). Out: notes and placeholders for names that
were not recorded, so that no answer says "outside of operators" of a block whose operator was not recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rankmem_cli.show.session import SessionFacts
from rankmem_cli.show.table import OUTSIDE, OUTSIDE_OF_MODULES, Column
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

NOT_RECORDED: Final = "(not recorded)"
_NEEDS: Final = {"operator": "operators", "module": "modules", "line": "stacks", "phase": "operators"}
"""What each column needs."""
_BRACKETS: Final = (
    "a line in [brackets] is the nearest Python frame, where no frame of the project is in the stack"
)
_OF_KERNELS: Final = ("nsys", "nvprof")
"""Formats that contain kernels, and memory only on request."""
_OUTSIDE: Final = {"operators": OUTSIDE, "modules": OUTSIDE_OF_MODULES}


def notes(facts: SessionFacts, needs: Iterable[str]) -> list[str]:
    """Notes for an answer that needs these: operators, stacks, modules."""
    lines = []
    for need in needs:
        without = [need in off for off in facts.not_recorded]
        if any(without):
            what = f"no {need} were recorded" if all(without) else f"some ranks recorded no {need}"
            lines.append(f"{what} ({_switch(facts, need)})")
    return lines


def bracket_notes(rows: pa.Table) -> list[str]:
    """A note on the brackets around a line, if any row has them."""
    for name in {"line", "forward_line"} & set(rows.column_names):
        if any(line is not None and line.startswith("[") for line in rows.column(name).to_pylist()):
            return [_BRACKETS]
    return []


def kernel_hints(facts: SessionFacts) -> list[str]:
    """How to query a session imported from a profile that has kernels but no memory events."""
    if facts.events or facts.source not in _OF_KERNELS:
        return []
    ask = f"FROM kernel_total('{facts.session_id}', of_group := 'operator')"
    again = facts.given.complete(f'rankmem sql "{ask}"')
    return [
        f"{facts.source} recorded kernels but no memory; for the kernels' time: {again}",
        "of_group may also be layer, call_site, short_name or stream",
    ]


@contextmanager
def hinting_at_kernels(facts: SessionFacts) -> Iterator[None]:
    """A context in which an error for missing events hints at the kernels, if there are only kernels."""
    try:
        yield
    except RankmemError as exc:
        kernels = kernel_hints(facts)
        if exc.code is not Code.NOT_FOUND or not kernels:
            raise
        raise RankmemError(exc.code, exc.message, kernels[0]) from exc


def placeholder(facts: SessionFacts, need: str) -> str:
    """The placeholder for a block without an operator or a module."""
    without = [need in off for off in facts.not_recorded]
    usual = _OUTSIDE.get(need, "-")
    if not any(without) and not facts.was_reduced:
        return usual
    return NOT_RECORDED if without and all(without) else f"{usual} or {NOT_RECORDED}"


def with_placeholders(columns: Sequence[Column], facts: SessionFacts) -> list[Column]:
    """The columns, with a placeholder where one was not recorded."""
    return [_with_placeholder(column, facts) for column in columns]


def _with_placeholder(column: Column, facts: SessionFacts) -> Column:
    need = _NEEDS.get(column.name)
    if need is None or not (facts.was_reduced or any(need in off for off in facts.not_recorded)):
        return column
    absent = placeholder(facts, need)
    return dataclasses.replace(column, forms=tuple(_or_absent(form, absent) for form in column.forms))


def _or_absent(form: Callable[[Any], str], absent: str) -> Callable[[Any], str]:
    return lambda value: absent if value is None else form(value)


def _switch(facts: SessionFacts, need: str) -> str:
    levels = [level for level in (facts.detail or "").split(", ") if level not in ("", "full", "auto")]
    return f"RANKMEM_DETAIL={' and '.join(levels)}" if levels else f"RANKMEM_{need.upper()}=off"
