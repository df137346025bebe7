"""Regular expressions that repeat a group and give nothing back: a run of any length takes no memory.

Stage: readers; any process. In: the pattern of an item; out: that of a run of items.
"""

from __future__ import annotations


def repeated(item: bytes) -> bytes:
    """``(?:item)*+``, right on every CPython.

    Where an item fails half-way, a CPython before 3.11.5 has the run end there (gh-106052). The second
    alternative, which never matches, takes it back to where the item began.
    """
    return rb"(?:" + item + rb"|(?!))*+"
