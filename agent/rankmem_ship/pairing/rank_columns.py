"""The columns that rows share: which rank, which device, and names of the rank's spool.

Stage: pairing; shipper process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankmem_ship.pairing.columns import coded_names, constant_name, dense_codes, null_names, smalls
from rankmem_ship.pairing.devices import device_name, is_host_memory
from rankmem_ship.pairing.state import ABSENT, Array
from rankmem_ship.spool_reader.string_table import StringTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RankColumns:
    """Whose rows they are."""

    session_id: str
    attempt: int
    rank: int
    strings: StringTable

    def of_rank(self, length: int) -> dict[str, pa.Array]:
        """session_id, attempt and rank, the same in every row."""
        return {
            "session_id": constant_name(self.session_id, length),
            "attempt": smalls(np.full(length, self.attempt, np.int32)),
            "rank": smalls(np.full(length, self.rank, np.int32)),
        }

    def of_device(self, numbers: Array, devices: Array) -> dict[str, pa.Array]:
        """Those and the device, by its dense number."""
        names = [device_name(int(code)) for code in devices["code"]]
        return self.of_rank(len(numbers)) | {"device": coded_names(numbers, names)}

    def required_names(self, ids: Array) -> pa.Array:
        """Names where NULL is not allowed: id 0 gives the unknown name."""
        used, codes = dense_codes(ids)
        return coded_names(codes, [self.strings.name(int(i)) for i in used] or [""])


def pool_names(pool: Array) -> pa.Array:
    """Pool ids (first << 32 | second) as text; NULL for the default pool."""
    if not pool.any():
        return null_names(len(pool))
    ids, place = np.unique(pool, return_inverse=True)
    texts = [f"{int(i) >> 32}.{int(i) & 0xFFFF_FFFF}" for i in ids]
    return coded_names(np.where(pool == 0, ABSENT, place), texts)


def are_on_host(devices: Array) -> Array:
    """Of each device, whether it is host memory."""
    return np.array([is_host_memory(int(code)) for code in devices["code"]], np.bool_)
