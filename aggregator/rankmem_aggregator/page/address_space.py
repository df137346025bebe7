"""The addresses of blocks without the gaps between them: what the address axis of the block map shows.

Stage: page, in the thread of a request. In: addresses and sizes as arrays; out: how far each lies above the
first when the gaps are left out, and what was kept. A device's segments lie anywhere in 2⁶⁴ bytes; addresses
above 2⁶³ stand in the tables as negative numbers, and sort before the others here. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

GAP_BYTES: Final = 2 << 20
"""A longer gap is left out: CUDA's smallest segment."""
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


def address_text(address: int) -> str:
    """An address as people write it: unsigned, in hexadecimal digits."""
    return f"0x{address & _MASK:x}"


def address_texts(addresses: Iterable[int | None]) -> list[str | None]:
    """Many of them, without a call for each: 20,000 in 5 ms."""
    return [None if each is None else f"0x{each & _MASK:x}" for each in addresses]
