"""What bytes mean: the categories of blocks, by number and by the name that the database has.

Stage: all; standard library only.
"""

from __future__ import annotations

import enum
from typing import Final


class Category(enum.IntEnum):
    """torch.profiler's names and numbers; UNKNOWN and KV_CACHE are ours."""

    UNKNOWN = 0
    INPUT = 1
    TEMPORARY = 2
    ACTIVATION = 3
    GRADIENT = 4
    AUTOGRAD_DETAIL = 5
    PARAMETER = 6
    OPTIMIZER_STATE = 7
    KV_CACHE = 8
    """Keys and values that a model keeps of earlier tokens."""


CATEGORY_NAMES: Final = tuple(category.name.lower() for category in Category)
"""The names in the database, by number."""
