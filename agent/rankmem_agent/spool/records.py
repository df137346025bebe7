"""Records by the names of their fields: the one signature of their writers, and their bytes.

Stage: between whatever records (the native tap, its fallback, an import) and the log. In: a kind and its
fields, as :data:`rankmem_agent.spool.layout.FIELDS` names them. Out: the slots of a record, or its bytes.
Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import COMMON_FIELDS, FIELDS, RECORD_FIELDS, Field, Kind

_CODES: Final = {"u8": "B", "u32": "I", "u64": "Q", "char[8]": "8s"}


class RecordWriter(Protocol):
    """Whatever writes into a log."""

    def intern(self, text: str, /) -> int:
        """The string's id in the spool; 0 if it could not be written."""

    def record(self, kind: Kind, /, **fields: int) -> object:
        """Appends a record.

        Args:
            fields: by the names that ``layout.FIELDS`` gives them for the kind, and ``layout.COMMON_FIELDS``;
                zero by default.
        """


def struct_of(fields: Sequence[Field]) -> struct.Struct:
    """The ``struct.Struct`` of a fixed layout: its fields in order of offset, gaps as padding."""
    text, end = "<", 0
    for field in fields:
        text += f"{field.offset - end}x" if field.offset > end else ""
        text += _CODES[field.ctype]
        end = field.offset + layout.TYPE_BYTES[field.ctype]
    return struct.Struct(text)


RECORD_STRUCT: Final = struct_of(RECORD_FIELDS)
"""time_ns, a, b, c, d, call_id, thread, e, kind, action, device_type, device_index, mark."""
_SLOTS: Final = {
    kind: {name: name for name in COMMON_FIELDS} | {name: slot.name for name, slot in named.items()}
    for kind, named in FIELDS.items()
}
_ORDER: Final = [field.name for field in RECORD_FIELDS]
_KIND_PLACE: Final = _ORDER.index("kind")
_PLACES: Final = {
    kind: {name: _ORDER.index(slot) for name, slot in slots.items()} for kind, slots in _SLOTS.items()
}


def slots_of(kind: Kind, fields: Mapping[str, int]) -> dict[str, int]:
    """The values by the record's own slots (``a``, ``b``, …).

    Raises:
        KeyError: the kind has no field of that name.
    """
    slots = _SLOTS[kind]
    return {slots[name]: value for name, value in fields.items()}


def packed(kind: Kind, /, **fields: int) -> bytes:
    """The bytes of a record without its mark.

    Raises:
        KeyError: as above.
    """
    places, values = _PLACES[kind], [0] * len(_ORDER)
    values[_KIND_PLACE] = kind
    for name, value in fields.items():
        values[places[name]] = value
    return RECORD_STRUCT.pack(*values)
