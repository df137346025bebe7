"""The C++ side of the spool's layout: ``spool_layout.h``, made when the tap is built.

Stage: tap, at build time. In: :mod:`rankmem_agent.spool.layout`. Out: the text of the header: constants,
enums and structs with static asserts, and for each kind of record a struct that names its fields. Standard
library only. The named fields are inlined references to a record's slots: not a byte or instruction more.
"""

from __future__ import annotations

from rankmem_agent.spool import layout
from rankmem_agent.spool.layout import C_TYPES, FIELDS, RECORD_FIELDS, STRUCTS, TYPE_BYTES, Field, Kind

_ENUMS = (
    Kind, layout.Category, layout.Action, layout.DeviceType, layout.Phase, layout.MarkerKind, layout.Entry,
    layout.State, layout.ExitKind, layout.Detail, layout.Outcome, layout.Course,
)  # fmt: skip
_CONSTANTS = (
    "FORMAT_VERSION", "RECORD_BYTES", "RECORDS_PER_SEGMENT", "SEGMENT_HEADER_BYTES", "SEGMENT_BYTES",
    "CONTROL_BYTES", "STRINGS_HEADER_BYTES", "STRING_ENTRY_HEADER_BYTES", "STRING_BYTES_MAX",
    "NOTE_BYTES_MAX", "STACK_FRAMES_MAX", "NO_SEQUENCE", "NO_PHASE", "UNKNOWN", "FRAMES_UNKNOWN",
    "IN_CLOSURE", "ORDER_SALT",
)  # fmt: skip


def c_header() -> str:
    """The text of ``spool_layout.h``."""
    lines = [
        "// Made by rankmem_agent.spool.c_header; do not edit.",
        "#pragma once",
        "#include <cstddef>",
        "#include <cstdint>",
    ]
    lines += [f"constexpr uint64_t RKM_{name} = {getattr(layout, name)}ull;" for name in sorted(_CONSTANTS)]
    for enum_class in _ENUMS:
        prefix = f"constexpr uint8_t RKM_{enum_class.__name__.upper()}"
        lines += [f"{prefix}_{member.name} = {int(member)};" for member in enum_class]
    magics = ("SEGMENT_MAGIC", "CONTROL_MAGIC", "STRINGS_MAGIC")
    lines += [f'#define RKM_{magic} "{getattr(layout, magic).decode()}"' for magic in magics]
    for name, fields, size in STRUCTS:
        lines += _c_struct(name, fields, size)
    for kind in Kind:
        lines += _c_record(kind)
    lines += [
        "struct RkmOffset { const char* name; uint64_t offset; };",
        "constexpr RkmOffset RKM_OFFSETS[] = {",
    ]
    for name, fields, _ in STRUCTS:
        lines += [f'  {{"{name}.{f.name}", offsetof({name}, {f.name})}},' for f in fields]
    return "\n".join([*lines, "};"]) + "\n"


def _c_struct(name: str, fields: tuple[Field, ...], size: int) -> list[str]:
    """A packed C struct with explicit padding, and asserts that the compiler agrees on every offset."""
    body: list[str] = []
    end = 0
    for index, field in enumerate(fields):
        if field.offset > end:
            body.append(f"  uint8_t pad{index}[{field.offset - end}];")
        if field.ctype == "char[8]":
            body.append(f"  char {field.name}[8];")
        else:
            body.append(f"  {C_TYPES[field.ctype]} {field.name};")
        end = field.offset + TYPE_BYTES[field.ctype]
    if size > end:
        body.append(f"  uint8_t pad_end[{size - end}];")
    asserts = [f"static_assert(offsetof({name}, {f.name}) == {f.offset});" for f in fields]
    return [f"struct {name} {{", *body, "};", f"static_assert(sizeof({name}) == {size});", *asserts]


def _c_record(kind: Kind) -> list[str]:
    """A record of one kind, whose fields have their names."""
    name = "Rkm" + kind.name.title().replace("_", "")
    ctypes = {field.name: C_TYPES[field.ctype] for field in RECORD_FIELDS}
    setters = [
        f"  {ctypes[slot.name]}& {field}() noexcept {{ return {slot.name}; }}"
        for field, slot in FIELDS[kind].items()
    ]
    return [
        f"struct {name} : RkmRecord {{",
        f"  {name}() noexcept : RkmRecord{{}} {{ kind = RKM_KIND_{kind.name}; }}",
        *setters,
        "};",
    ]
