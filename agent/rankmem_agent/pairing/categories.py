"""What blocks mean: the category of each block as its row goes out, and what is learned of it later.

Stage: pairing; shipper process, pure functions over arrays. In: a batch's facts and what was known of the
blocks alive before it. Out: a category for each row of allocation_record, and the changes of earlier rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rankmem_agent.pairing.batch import Batch
from rankmem_agent.pairing.state import CATEGORY_DTYPE, Array
from rankmem_agent.spool.layout import Category

CATEGORIES: Final = tuple(category.name.lower() for category in Category)
"""Names in the database, by number."""

CHANGE_DTYPE: Final = np.dtype(
    [
        ("allocation_id", "<i8"),
        ("time_ns", "<i8"),  # host time from which on the block means this; its own alloc's if it always did
        ("seq", "<i8"),  # likewise
        ("device", "<i2"),  # dense number
        ("category", "u1"),
    ]
)
"""A row of category_change. At most one for each (allocation_id, seq) in the life of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The categories that a batch tells."""

    known: Array
    """CATEGORY_DTYPE, PairingState.categories after the batch."""
    initial: Array
    """uint8, one for each of Batch.records_due: what the block has meant since it was allocated."""
    changes: Array
    """CHANGE_DTYPE, in order of seq: blocks whose row went out earlier, or that change after their alloc."""


def resolve(known: Array, batch: Batch) -> Resolved:
    """The categories of a batch.

    Args:
        known: PairingState.categories before the batch.
        batch: its facts.
    """
    initial = np.zeros(len(batch.records_due), np.uint8)
    return Resolved(known=np.zeros(0, CATEGORY_DTYPE), initial=initial, changes=np.zeros(0, CHANGE_DTYPE))
