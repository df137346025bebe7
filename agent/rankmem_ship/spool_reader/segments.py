"""A spool's fixed-size files, mapped: segments of records and the control file, as numpy arrays.

Stage: spool, reading side, below :mod:`rankmem_ship.spool_reader.reader`. In: a path; out: a view of the
mapping, or None for a segment that is not there or not ready. Runs in the shipper process. It never maps
or reads behind a file's end (SIGBUS), and takes no format newer than its own.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankmem_agent.spool.layout import (
    CONTROL_BYTES,
    CONTROL_FIELDS,
    CONTROL_MAGIC,
    FIELDS,
    FORMAT_VERSION,
    RECORD_BYTES,
    RECORD_FIELDS,
    RECORDS_PER_SEGMENT,
    SEGMENT_HEADER_BYTES,
    SEGMENT_HEADER_FIELDS,
    SEGMENT_MAGIC,
    Field,
    Kind,
)
from rankmem_protos.errors import Code, RankmemError

Array = npt.NDArray[Any]

_NUMPY_TYPES: Final = {"u8": "u1", "i8": "i1", "u32": "<u4", "u64": "<u8", "char[8]": "S8"}


def struct_dtype(fields: tuple[Field, ...], size_bytes: int) -> np.dtype[np.void]:
    """The numpy dtype of a fixed struct of the layout."""
    return np.dtype(
        {
            "names": [f.name for f in fields],
            "formats": [_NUMPY_TYPES[f.ctype] for f in fields],
            "offsets": [f.offset for f in fields],
            "itemsize": size_bytes,
        }
    )


RECORD_DTYPE: Final = struct_dtype(RECORD_FIELDS, RECORD_BYTES)
SEGMENT_HEADER_DTYPE: Final = struct_dtype(SEGMENT_HEADER_FIELDS, SEGMENT_HEADER_BYTES)
CONTROL_DTYPE: Final = struct_dtype(CONTROL_FIELDS, CONTROL_BYTES)


def _kind_dtype(kind: Kind) -> np.dtype[np.void]:
    """RECORD_DTYPE with the names of one kind's fields in place of the slots."""
    by_name = {field.name: field for field in RECORD_FIELDS}
    common = [by_name[name] for name in by_name if len(name) > 1]
    own = [replace(by_name[slot.name], name=name) for name, slot in FIELDS[kind].items()]
    return struct_dtype((*common, *own), RECORD_BYTES)


KIND_DTYPES: Final = {kind: _kind_dtype(kind) for kind in Kind}
"""The dtype of each kind's records, by the names of ``layout.FIELDS``."""


def named(records: Array, kind: Kind) -> Array:
    """The records with the field names of ``kind``; a view."""
    view: Array = records.view(KIND_DTYPES[kind])
    return view


def marks_of(segment_number: int, begin: int, end: int) -> Array:
    """What layout.mark_of gives for records ``begin`` to ``end`` of a segment."""
    first = (segment_number * RECORDS_PER_SEGMENT + begin) & 0x7FFF_FFFF
    return np.arange(first, first + end - begin, dtype=np.uint32) | np.uint32(0x8000_0000)


def num_committed(segment: Array, number: int, begin: int, end: int) -> int:
    """How many records from ``begin`` on carry their mark, without a hole."""
    if begin >= end:
        return 0
    right = segment["mark"][begin:end] == marks_of(number, begin, end)
    return end - begin if right.all() else int(right.argmin())


def open_segment(path: Path, number: int, *, ready_only: bool) -> Array | None:
    """The records of a segment as far as its file goes; None if it is not there, or not what it should be.

    Args:
        ready_only: None also while its header is not marked ready.

    Raises:
        RankmemError: UNSUPPORTED for a newer format.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        if size < SEGMENT_HEADER_BYTES:
            return None
        mapping = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    header = np.frombuffer(mapping, SEGMENT_HEADER_DTYPE, 1)[0]
    if header["magic"] != SEGMENT_MAGIC or header["segment_number"] != number:
        return None
    if ready_only and header["ready"] != 1:
        return None
    if header["version"] > FORMAT_VERSION or header["record_bytes"] != RECORD_BYTES:
        raise RankmemError(
            Code.UNSUPPORTED,
            f"{path} has format version {header['version']}; this rankmem reads up to {FORMAT_VERSION}",
            "deliver it with the version of rankmem that recorded it",
        )
    count = min((size - SEGMENT_HEADER_BYTES) // RECORD_BYTES, RECORDS_PER_SEGMENT)
    return np.frombuffer(mapping, RECORD_DTYPE, count, SEGMENT_HEADER_BYTES)


def open_control(path: Path) -> tuple[mmap.mmap, Array]:
    """``control`` mapped; for writing where we may, so that the trainer hears of acknowledgements."""
    try:
        writable = os.access(path, os.W_OK)
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            mapping = mmap.mmap(fd, CONTROL_BYTES, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        finally:
            os.close(fd)
    except (OSError, ValueError) as exc:
        raise RankmemError(Code.INVALID, f"{path} cannot be read as a spool's control file: {exc}") from exc
    control = np.frombuffer(mapping, CONTROL_DTYPE, 1)
    if control["magic"][0] != CONTROL_MAGIC or control["version"][0] > FORMAT_VERSION:
        raise RankmemError(
            Code.INVALID,
            f"{path} has magic {bytes(control['magic'][0])!r}, version {int(control['version'][0])}; "
            f"this rankmem reads {CONTROL_MAGIC!r} up to {FORMAT_VERSION}",
        )
    return mapping, control
