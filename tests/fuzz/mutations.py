"""Bytes and numbers made wrong: what the fuzzers of wire, port and spools have in common."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

EXTREMES = (0, 1, -1, 7, 255, 2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "\x00",
    "a\x00b",
    "\x1b[2J\x1b]0;x\x07",
    "\u202eevil\u2066",
    "../../../etc/passwd",
    "'; DROP TABLE session; --",
    "=cmd|' /C calc'!A0",
    "x" * 70_000,
    "\ud7ff\U0010ffff",
    "%s%n{0}",
)


def mutated(data: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """The bytes with one to four things wrong."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        _mutate(made, rng, other)
    return bytes(made)


def _mutate(made: bytearray, rng: random.Random, other: bytes) -> None:
    if not made:
        made += rng.randbytes(rng.randint(1, 64))
        return
    at = rng.randrange(len(made))
    match rng.randrange(8):
        case 0:
            made[at] ^= 1 << rng.randrange(8)
        case 1:
            made[at] = rng.randrange(256)
        case 2:  # numbers of headers are aligned
            width, code = rng.choice(((4, "<I"), (8, "<Q")))
            place = at // width * width
            value = rng.choice(EXTREMES) % 256**width
            made[place : place + width] = struct.pack(code, value)[: len(made) - place]
        case 3:
            del made[at:]
        case 4:
            del made[at : at + rng.choice((1, 4, 8, 64))]
        case 5:
            made[at:at] = rng.randbytes(rng.choice((1, 4, 8, 64)))
        case 6:
            length = rng.choice((8, 64, 512))
            from_place = rng.randrange(len(made))
            made[at : at + length] = made[from_place : from_place + length]
        case 7:
            source = other or bytes(made)
            begin = rng.randrange(len(source) or 1)
            made[at : at + 256] = source[begin : begin + 256]


def number(rng: random.Random, usual: Sequence[int] = ()) -> int:
    """A usual number, an extreme one, or any of 64 bits."""
    kind = rng.randrange(3)
    if kind == 0 and usual:
        return rng.choice(usual)
    return rng.choice(EXTREMES) if kind < 2 else rng.randint(-(2**63), 2**63 - 1)
