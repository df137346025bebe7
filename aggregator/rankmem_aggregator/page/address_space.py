"""The addresses of blocks without the gaps between them: what the address axis of the block map shows.

Stage: page, in the thread of a request. In: addresses and sizes as arrays; out: how far each lies above the
first when the gaps are left out, and what was kept. A device's segments lie anywhere in 2⁶⁴ bytes; addresses
above 2⁶³ stand in the tables as negative numbers, and sort before the others here. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

GAP_BYTES: Final = 2 << 20
"""A longer gap is left out: CUDA's smallest segment."""
_ADDRESS: Final = re.compile(r"0x[0-9a-f]{1,16}", re.IGNORECASE)
_MASK: Final = 2**64 - 1
_HIGHEST: Final = np.int64(2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressSpace:
    """Ranges of addresses, one after the other."""

    begins: Array
    """First address of each, as the tables have it; ascending."""
    offsets: Array
    """Bytes of the ranges before each."""
    total_bytes: int

    def offset_of(self, addresses: Array) -> Array:
        """How many kept bytes lie below each address, which must be within a range."""
        place = np.searchsorted(self.begins, addresses, side="right") - 1
        found: Array = addresses - self.begins[place] + self.offsets[place]
        return found

    def offset_near(self, address: int) -> int:
        """How many kept bytes lie below an address, which may be in a gap or outside of all ranges."""
        place = int(np.searchsorted(self.begins, address, side="right")) - 1
        if place < 0:
            return 0
        end = int(self.offsets[place + 1]) if place + 1 < len(self.offsets) else self.total_bytes
        return min(address - int(self.begins[place]) + int(self.offsets[place]), end)

    def window(self, first: int | None, after: int | None) -> tuple[int, int]:
        """The kept bytes from one address to before another, as offsets; None: to the end. Never empty."""
        low = 0 if first is None else min(self.offset_near(first), max(self.total_bytes - 1, 0))
        high = self.total_bytes if after is None else self.offset_near(after)
        return low, max(high, low + 1)


def address_space(addresses: Array, sizes: Array) -> AddressSpace:
    """The ranges that blocks lie in, without longer gaps."""
    if not len(addresses):
        return AddressSpace(begins=np.empty(0, np.int64), offsets=np.empty(0, np.int64), total_bytes=0)
    order = np.argsort(addresses, kind="stable")
    begin = addresses[order]
    end = np.maximum.accumulate(np.where(begin > _HIGHEST - sizes[order], _HIGHEST, begin + sizes[order]))
    is_new = np.ones(len(begin), bool)
    # As unsigned numbers: the distance from the lowest to the highest does not fit into a signed one.
    gap = begin[1:].astype(np.uint64) - end[:-1].astype(np.uint64)
    is_new[1:] = (begin[1:] > end[:-1]) & (gap > GAP_BYTES)
    places = np.flatnonzero(is_new)
    begins = begin[places]
    lengths = end[np.append(places[1:] - 1, len(end) - 1)] - begins
    offsets = np.cumsum(lengths) - lengths
    return AddressSpace(begins=begins, offsets=offsets, total_bytes=int(lengths.sum()))


def read_address(text: str) -> int:
    """An address that people wrote, as the tables have it.

    Raises:
        ValueError: for what is none.
    """
    if not _ADDRESS.fullmatch(text):
        raise ValueError("an address of up to 16 hexadecimal digits, such as 0x7f00")
    address = int(text, 16)
    return address if address <= int(_HIGHEST) else address - 2**64


def address_text(address: int) -> str:
    """An address as people write it: unsigned, in hexadecimal digits."""
    return f"0x{address & _MASK:x}"


def address_texts(addresses: Iterable[int | None]) -> list[str | None]:
    """Many of them, without a call for each: 20,000 in 5 ms."""
    return [None if each is None else f"0x{each & _MASK:x}" for each in addresses]
