"""Bounds of numbers and texts, each once: no recording means a value beyond them, and no row may hold one.

The readers of spools and of other tools' files, the shipper and the aggregator use the same ones, so
that the last does not refuse what the first accepts. Imports nothing: every Python process below
``rankmem run`` reads it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own is not worth its import here
if TYPE_CHECKING:
    from typing import Final

SIZE_BYTES_MAX: Final = 2**50
"""1 PiB: no host has it; larger is a corrupt record. Thousands of them still add up within 64 bits."""
COUNT_MAX: Final = 2**48
"""Of events, records, blocks and stacks that a row counts, so that sums over ranks stay within 64 bits."""
NUMBER_MAX: Final = 2**62
"""Of times, positions and ids, either side of 0: views add and subtract them, and 64 bits must hold that.
As a time it is the year 2116."""
SEQUENCE_MAX: Final = 2**48
"""Of a position of a log: three years of the busiest rank seen."""
OFFSET_NS_MAX: Final = 2**61
"""Of a clock's offset and error, nanoseconds: 73 years, so that a clock that began at 1970 still counts;
added to any time it stays within 64 bits."""
NAME_BYTES_MAX: Final = 64 << 10
"""Of a repeating name, such as an operator's. The tap cuts at 1,024."""
TEXT_VALUE_BYTES_MAX: Final = 1 << 20
"""Of any other text, such as a command."""
MODULE_BYTES_MAX: Final = 4 << 10
"""Of a module's path: a question about modules makes a row of every dot in it."""
RANKS_MAX: Final = 1 << 20
"""Of a world's size, a rank and an attempt: ranks that never reported are listed one by one. Ten times
the largest jobs known."""
