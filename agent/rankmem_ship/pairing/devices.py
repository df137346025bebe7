"""Devices of a rank: their names, their dense numbers, and the key of a block on one.

Stage: pairing; shipper process. Records carry device type and index; inside pairing a device is its
position in ``PairingState.devices`` (order of first appearance in the log, so a function of the log).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rankmem_agent.spool.layout import DeviceType
from rankmem_ship.pairing.state import ABSENT, DEVICE_DTYPE, Array

DEVICES_MAX: Final = 127
"""Devices of one process: what fits above a 57-bit address in a block's key."""
ADDRESS_BITS: Final = 57

_PREFIX: Final = {
    DeviceType.CPU: "cpu",
    DeviceType.CUDA: "cuda",
    DeviceType.HIP: "hip",
    DeviceType.XPU: "xpu",
    DeviceType.PRIVATEUSE1: "privateuseone",
    DeviceType.PINNED: "pinned",
    DeviceType.NPU: "npu",
}
_ON_HOST: Final = (DeviceType.CPU, DeviceType.PINNED)


def device_name(code: int) -> str:
    """The name in the column ``device``: cuda:0, cpu, pinned; host memory has no index."""
    kind, index = divmod(code, 256)
    try:
        device_type = DeviceType(kind)
    except ValueError:
        return f"device{kind}:{index}"
    prefix = _PREFIX[device_type]
    return prefix if device_type in _ON_HOST else f"{prefix}:{index}"


def is_host_memory(code: int) -> bool:
    """Whether requested, allocated, active and reserved are one figure there (cpu and pinned)."""
    return code >> 8 in _ON_HOST


def device_codes(records: Array) -> Array:
    """Type and index of each record as one number (uint16)."""
    codes: Array = (records["device_type"].astype(np.uint16) << np.uint16(8)) | records["device_index"]
    return codes


def with_devices(devices: Array, codes: Array) -> Array:
    """``devices`` with those of ``codes`` that are new appended in order of appearance."""
    found, first = np.unique(codes, return_index=True)
    new = [int(found[i]) for i in np.argsort(first) if found[i] not in devices["code"]]
    if not new:
        return devices
    rows = np.zeros(len(new), DEVICE_DTYPE)
    rows["code"] = new
    for column in ("allocated", "active", "allocated_top", "active_top"):
        rows[column] = ABSENT
    joined: Array = np.concatenate([devices, rows])[:DEVICES_MAX]
    return joined


def dense_numbers(devices: Array, codes: Array) -> Array:
    """The device numbers of ``codes`` (int16); every code is in ``devices``."""
    lookup = np.zeros(65536, np.int16)
    lookup[devices["code"]] = np.arange(len(devices), dtype=np.int16)
    numbers: Array = lookup[codes]
    return numbers


def block_keys(numbers: Array, addresses: Array) -> Array:
    """The key of a living block: device and address in one number (uint64)."""
    mask = np.uint64((1 << ADDRESS_BITS) - 1)
    return (numbers.astype(np.uint64) << np.uint64(ADDRESS_BITS)) | (addresses & mask)
