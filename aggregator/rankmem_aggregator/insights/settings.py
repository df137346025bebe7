"""The settings of PyTorch's caching allocator: what they say, and the sizes that follow from them.

Stage: insights, in the reader's process. In: the text of ``PYTORCH_CUDA_ALLOC_CONF``, or what a recording has
of it. Out: :class:`Settings`. Pure values.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h`` (torch 2.0 to 2.10) for the
constants and the rounding; ``torch_npu/csrc/core/npu/NPUCachingAllocator.cpp`` for the two of torch_npu.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from rankmem_protos.errors import Code, RankmemError

MIN_BLOCK_BYTES: Final = 512
"""Blocks are multiples of it (kMinBlockSize)."""
SMALL_BYTES_MAX: Final = 1 << 20
"""Blocks up to this are of the small pool; of the large pool no rest of at most this is split off."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
LARGE_SEGMENT_BYTES: Final = 20 << 20
"""For blocks of the large pool below MIN_LARGE_BYTES (kLargeBuffer)."""
MIN_LARGE_BYTES: Final = 10 << 20
"""Blocks from this on get a segment of their own size, rounded to LARGE_ROUND_BYTES."""
LARGE_ROUND_BYTES: Final = 2 << 20
UNLIMITED: Final = 1 << 62
"""Bytes that no device has."""
NPU_EXTRA_BYTES: Final = 32
"""torch_npu adds it to a request before it rounds."""
NPU_ALIGN_BYTES: Final = 16 << 10
"""torch_npu lets blocks of at least LARGE_ROUND_BYTES in expandable segments begin at multiples of it, where
the free block has the room."""

_MEGABYTES: Final = {
    "max_split_size_mb": "max_split_size_bytes",
    "max_non_split_rounding_mb": "max_non_split_rounding_bytes",
    "large_segment_size_mb": "large_segment_bytes",
}
_CHANGEABLE: Final = (
    "expandable_segments", "roundup_power2_divisions", "garbage_collection_threshold", *_MEGABYTES.values(),
)  # fmt: skip
_WITHOUT_EFFECT: Final = frozenset(
    {
        "backend", "release_lock_on_cudamalloc", "graph_capture_record_stream_reuse",
        "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_num_register_threads",
        "pinned_max_register_threads", "pinned_use_background_threads", "pinned_reserve_segment_size_mb",
    }
)  # fmt: skip
"""They do not change where blocks go on the device. A backend other than native is refused."""
_MEASURED_ON_NPU: Final = frozenset({"", "expandable_segments:True"})
_MEASURED_ON_CUDA: Final = _MEASURED_ON_NPU | {
    "max_split_size_mb:128", "roundup_power2_divisions:8", "garbage_collection_threshold:0.8",
}  # fmt: skip
"""By recordings of an H200 (tests/unit/recordings)."""
_PART: Final = re.compile(r"\s*(\w+)\s*:\s*(\[[^\]]*\]|[^,\[\]]+?)\s*(?:,|$)")
_TAP_EXPANDABLE: Final = "[expandable_segments]"
"""What the tap adds to the text where the allocator's own flag is set."""

Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an allocator, and what its device gives. Sizes in bytes."""

    expandable_segments: bool = False
    max_split_size_bytes: int = UNLIMITED
    """Blocks of at least this are not split, and not given to smaller requests."""
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    """A request of at least max_split_size_bytes takes a free block that is less than this larger."""
    roundup_power2_divisions: int = 0
    """Sizes are rounded up to one of so many steps between two powers of two; 0 or 1: to 512 bytes."""
    garbage_collection_threshold: float = 0.0
    """Of allowed_bytes: above it, segments that were long unused go before new ones come. 0: never."""
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    capacity_bytes: int = UNLIMITED
    """What the device gives this process's allocator."""
    allowed_bytes: int | None = None
    """What ``set_per_process_memory_fraction`` allows; without it nothing is garbage collected."""
    device_bytes: int = 80 << 30
    """Memory of the device: an expandable segment reserves 9/8 of it as addresses."""
    extra_bytes: int = 0
    """Added to every request before it is rounded; torch_npu's 32."""
    align_bytes: int = 0
    """At multiples of it large blocks in expandable segments begin; torch_npu's 16 KiB."""

    @classmethod
    def parse(cls, text: str, **more: Any) -> Self:
        """The settings in a text as PYTORCH_CUDA_ALLOC_CONF has it; ``more``: further fields.

        Raises:
            RankmemError: INVALID for text that is none, UNSUPPORTED for a setting whose effect is not
                modelled.
        """
        fields: dict[str, Any] = {}
        if _TAP_EXPANDABLE in text:
            fields["expandable_segments"] = True
            text = text.replace(_TAP_EXPANDABLE, "")
        for name, value in _parts(text.strip()):
            fields |= _field(name, value)
        return cls(**(fields | more))

    @classmethod
    def recorded(cls, text: str | None, device: str, device_bytes: int | None = None) -> Self:
        """The settings of a recorded device.

        Args:
            text: its ``device_info.settings``: the text of the variable, or JSON of the snapshot's
                ``allocator_settings``; None: the default ones.
            device: its type and index.
            device_bytes: its memory, where known.

        Raises:
            RankmemError: UNSUPPORTED for a device or a setting whose effect is not modelled.
        """
        more: dict[str, Any] = {} if not device_bytes else {"device_bytes": device_bytes}
        kind = device.partition(":")[0]
        if kind == "npu":
            more |= {"extra_bytes": NPU_EXTRA_BYTES, "align_bytes": NPU_ALIGN_BYTES}
        elif kind not in ("cuda", "hip"):
            raise RankmemError(
                Code.UNSUPPORTED,
                f"the allocator of {device} is not modelled: only those of cuda, hip and npu are",
                "rankmem peak shows what was allocated there",
            )
        if text is not None and text.startswith("{"):
            return cls.parse(_variable(json.loads(text)), **more)
        return cls.parse(text or "", **more)

    def changed(self, text: str) -> Self:
        """These settings with those of a text in their place; what the device is stays."""
        default = Settings()
        fields: dict[str, Any] = {name: getattr(default, name) for name in _CHANGEABLE}
        for name, value in _parts(text):
            fields |= _field(name, value)
        return replace(self, **fields)

    def text(self) -> str:
        """The settings as PYTORCH_CUDA_ALLOC_CONF has them; empty for the default ones."""
        parts = []
        if self.expandable_segments:
            parts.append("expandable_segments:True")
        if self.max_split_size_bytes < UNLIMITED:
            parts.append(f"max_split_size_mb:{self.max_split_size_bytes >> 20}")
        if self.roundup_power2_divisions > 1:
            parts.append(f"roundup_power2_divisions:{self.roundup_power2_divisions}")
        if self.garbage_collection_threshold > 0:
            parts.append(f"garbage_collection_threshold:{self.garbage_collection_threshold:g}")
        default = type(self)()
        parts += [
            f"{name}:{getattr(self, field) >> 20}"
            for name, field in _MEGABYTES.items()
            if field != "max_split_size_bytes" and getattr(self, field) != getattr(default, field)
        ]
        return ",".join(parts)

    def is_measured(self) -> bool:
        """Whether the model of these settings was held against recordings of such a device. With others it
        was held against PyTorch's own allocator on a simulated device."""
        return self.text() in (_MEASURED_ON_NPU if self.align_bytes else _MEASURED_ON_CUDA)

    def block_bytes(self, requested: Sizes) -> Sizes:
        """What the allocator takes for requests of these bytes."""
        asked = requested + self.extra_bytes
        rounded = -(-asked // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
        if self.roundup_power2_divisions > 1:
            is_large = asked > MIN_BLOCK_BYTES * self.roundup_power2_divisions
            rounded = np.where(is_large, self._power2_steps(asked), rounded)
        found: Sizes = np.maximum(rounded, MIN_BLOCK_BYTES)
        return found

    def segment_bytes(self, block_bytes: int) -> int:
        """The segment that is made for a block that fits nowhere."""
        if block_bytes <= SMALL_BYTES_MAX:
            return SMALL_SEGMENT_BYTES
        if block_bytes < MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return -(-block_bytes // LARGE_ROUND_BYTES) * LARGE_ROUND_BYTES

    def _power2_steps(self, asked: Sizes) -> Sizes:
        floor = np.int64(1) << (np.frexp(np.maximum(asked, 1).astype(np.float64))[1].astype(np.int64) - 1)
        step = np.maximum(floor >> (self.roundup_power2_divisions.bit_length() - 1), 1)
        steps: Sizes = np.where(asked == floor, asked, -(-asked // step) * step)
        return steps


def _parts(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            raise RankmemError(
                Code.INVALID,
                f"{text!r} is no setting of the allocator",
                "as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True,max_split_size_mb:128",
            )
        found.append((match[1], match[2]))
        at = match.end()
    return found


def _field(name: str, value: str) -> dict[str, Any]:
    """The fields that one setting gives."""
    try:
        if name == "expandable_segments":
            return {"expandable_segments": {"True": True, "False": False}[value]}
        if name in _MEGABYTES:
            return {_MEGABYTES[name]: int(value) << 20}
        if name == "garbage_collection_threshold":
            return {name: float(value)}
        if name == "roundup_power2_divisions" and not value.startswith("["):
            return {name: int(value)}
    except (KeyError, ValueError) as exc:
        raise RankmemError(
            Code.INVALID, f"{name} cannot be {value!r}", "see PyTorch's notes on CUDA"
        ) from exc
    if name in _WITHOUT_EFFECT and not (name == "backend" and value != "native"):
        return {}
    raise RankmemError(
        Code.UNSUPPORTED,
        f"what {name}:{value} does is not modelled",
        f"modelled are expandable_segments, {', '.join(_MEGABYTES)}, roundup_power2_divisions as one number "
        "and garbage_collection_threshold",
    )


def _variable(settings: dict[str, Any]) -> str:
    """The text of the variable out of a snapshot's ``allocator_settings``."""
    text = settings.get("last_allocator_settings") or settings.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if settings.get("expandable_segments") and "expandable_segments" not in text:
        text = f"{text},expandable_segments:True".lstrip(",")
    return str(text)
