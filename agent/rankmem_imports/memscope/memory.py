"""The facts in a MALLOC or FREE of an msMemScope dump: owner, device, address, size.

Stage: readers, pure functions; the process of ``rankmem import``. In: a row; out: its facts, checked.
Memory that the driver gave (HAL) belongs to a module: of the process itself (APP) or of a library (RUNTIME,
HCCL); older dumps have its number (MID), newer ones its name in the owner (``CANN@HCCL``), if so
configured.

Source: Ascend/msmemscope csrc/analysis/{dump,decompose_analyzer}.cpp; the numbers as in ENUM_MODULE of
torch_npu's databases.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rankmem_agent.spool.layout import DeviceType
from rankmem_imports.memscope.rows import Row, attributes_of, whole
from rankmem_protos.bounds import SIZE_BYTES_MAX

POOLS: Final = {"PTA": "pytorch", "MINDSPORE": "mindspore", "ATB": "atb", "PTA_WORKSPACE": "workspace"}
"""Our component of each pool."""
DRIVER: Final = "HAL"
HOST_KINDS: Final = frozenset({"HOST", "HOST_PINNED"})
APP: Final = "APP"
"""The module of memory that the process itself got from the driver: pools are cut from it."""
MODULES: Final = {
    3: "HCCL", 5: "HIAIENGINE", 6: "DVPP", 7: "RUNTIME", 8: "CCE", 9: "HDC", 10: "DRV", 22: "DEVMM",
    23: "KERNEL", 26: "ASCENDDK", 28: "HCCP", 29: "ROCE", 30: "TEFUSION", 31: "PROFILING", 32: "DP", 33: APP,
    34: "TS", 36: "AICPU", 38: "TDT", 39: "FE", 45: "GE", 48: "ASCENDCL", 57: "TBE", 62: "FFTS", 63: "OP",
}  # fmt: skip
"""By number; those that training uses. Any other is named by its number."""
ADDRESS_MAX: Final = 2**62
"""No device has memory beyond: a larger number is a corrupt one."""

_OWNER: Final = "CANN@"
_Device = tuple[int, int]
PINNED: Final[_Device] = (DeviceType.PINNED, 0)


class Memory(NamedTuple):
    """One MALLOC or FREE."""

    is_alloc: bool
    kind: str
    """HAL, HOST, HOST_PINNED, or a pool."""
    device: _Device
    address: int
    size: int
    """0 for a free that does not state it."""
    used: int | None
    """Of a pool, after it."""
    total: int | None
    module: str | None
    """Of HAL: the owner; None if unknown."""

    def component(self) -> str:
        """Our component of a pool."""
        return POOLS.get(self.kind, self.kind.lower())


def memory_of(row: Row) -> Memory:
    """The facts in a row.

    Raises:
        ValueError: it is cut short, or impossible for a block.
    """
    attributes = attributes_of(row.attributes)
    kind, is_alloc = row.kind.upper(), row.event == "MALLOC"
    address = row.address if row.address is not None else whole(_needed(attributes, "addr"), "addr")
    if not 0 <= address <= ADDRESS_MAX:
        raise ValueError(f"an address of {address}")
    size = whole(_needed(attributes, "size"), "size") if is_alloc or attributes.get("size") else 0
    # Pools write negative sizes for frees.
    if (is_alloc and size < 0) or abs(size) > SIZE_BYTES_MAX:
        raise ValueError(f"a block of {size} bytes")
    used, total = (
        whole(attributes[name], name) if attributes.get(name) else None for name in ("used", "total")
    )
    for name, value in (("used", used), ("total", total)):
        if value is not None and not 0 <= value <= SIZE_BYTES_MAX:
            raise ValueError(f"{name} is {value} bytes")
    if kind in HOST_KINDS:
        device = PINNED if kind == "HOST_PINNED" else (DeviceType.CPU, 0)
    else:
        device = device_of(row.device)
    return Memory(is_alloc, kind, device, address, abs(size), used, total, _module(attributes))


def device_of(text: str) -> _Device:
    """Type and index of a device; pinned host memory if it is not an accelerator."""
    plain = text.strip().lower().removeprefix("npu:").removeprefix("npu")
    return (DeviceType.NPU, min(int(plain), 255)) if plain.isdecimal() else PINNED


def _needed(attributes: dict[str, str], name: str) -> str:
    if not attributes.get(name):
        raise ValueError(f"no {name} among its attributes")
    return attributes[name]


def _module(attributes: dict[str, str]) -> str | None:
    if attributes.get("MID"):
        number = whole(attributes["MID"], "MID")
        return MODULES.get(number, f"module {number}") if number >= 0 else None
    owner = attributes.get("owner", "")
    return owner.removeprefix(_OWNER).partition("@")[0] or None if owner.startswith(_OWNER) else None
