"""Bytes, offsets and counts as text, the same in tables, pages and pictures.

Stage: render and export. In: plain integers or None; out: short text. GiB is 2^30 and printed as GiB.
"""

from __future__ import annotations

from typing import Final

NOTHING: Final = "-"
"""What stands for NULL."""
BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def bytes_text(num_bytes: int | None) -> str:
    """The bytes with two decimals in the largest unit that leaves at least one: ``1.50 GiB``."""
    if num_bytes is None:
        return NOTHING
    sign, size = ("-", -num_bytes) if num_bytes < 0 else ("", num_bytes)
    if size < 1024:
        return f"{sign}{size} B"
    power = min((size.bit_length() - 1) // 10, len(BYTE_UNITS) - 1)
    scaled = size / 1024**power
    if round(scaled, 2) >= 1024 and power + 1 < len(BYTE_UNITS):  # 1,048,575 B is 1.00 MiB, not 1024.00 KiB
        power, scaled = power + 1, scaled / 1024
    return f"{sign}{scaled:.2f} {BYTE_UNITS[power]}"


def offset_text(offset_ns: int | None) -> str:
    """An offset from the session's start, to the millisecond: ``+12.345 s``, ``+2:03.456``, ``+1:02:03.456``.

    Tables print it and ``--at`` takes it back.
    """
    if offset_ns is None:
        return NOTHING
    sign = "-" if offset_ns < 0 else "+"
    total_ms = round(abs(offset_ns) / 1_000_000)
    seconds, ms = divmod(total_ms, 1000)
    if seconds < 60:
        return f"{sign}{seconds}.{ms:03d} s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{sign}{clock}:{seconds:02d}.{ms:03d}"


def counted(number: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
