"""Facts on a snapshot found without unpickling it: when it was recorded, and the rank if we exported it.

Stage: readers; the process of ``rankmem import``. In: a pickle of ``torch.cuda.memory._snapshot()``. Out:
the times of its first and last entries, by the bytes that pickle writes for a number of this size, and the
rank that our own export states.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Any, Final

from rankmem_imports.files.compressed import BROKEN, is_gzip, read_whole
from rankmem_imports.files.plain_pickle import PICKLE_BYTES_MAX, load_plain
from rankmem_imports.recording import RankFacts
from rankmem_imports.torch_snapshot.trace import TIME_US_MAX
from rankmem_protos.clock import has_clock
from rankmem_protos.errors import Code, RankmemError

TAIL_BYTES: Final = 4096
"""Of the end, where our own export states the rank."""
LASTS_US_MAX: Final = 7 * 24 * 3600 * 10**6
"""From the first entry to the last: a week. A later number is something else."""
LOOKS_BACK_MAX: Final = 10_000
"""Numbers looked at from the end, for the last time: behind the trace stand the segments."""

_OURS: Final = "rankmem"
"""Key of the rank in our own export."""
_FIRST_TIME: Final = re.compile(rb"time_us(?:\x94|q.|r....)?\x8a[\x07\x08](.{7})", re.DOTALL)
"""The first entry with a time, as pickle writes the microseconds of this century: a number of 7 bytes; as
torch's own pickler in C++ does (``_memory_snapshot_pickled``), of 8."""
_TIME_MARKS: Final = (b"\x8a\x07", b"\x8a\x08")
"""What stands before such a number."""

Data = bytes | mmap.mmap


def facts_of(path: Path) -> RankFacts:
    """The facts in a snapshot's file; none if it is empty or damaged, which is reported when it is read."""
    try:
        if path.stat().st_size == 0:
            return RankFacts()
        if is_gzip(path):
            return _facts_in(read_whole(path, PICKLE_BYTES_MAX) or b"", path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _facts_in(data, path)
    except BROKEN as exc:
        if isinstance(exc, OSError) and exc.strerror is not None:
            raise RankmemError(Code.NOT_FOUND, f"cannot read {path}: {exc.strerror}") from exc
        return RankFacts()


def identity_of(raw: Any) -> dict[str, Any]:
    """The rank that our own export states."""
    identity = raw.get(_OURS) if isinstance(raw, dict) else None
    return identity if isinstance(identity, dict) else {}


def _facts_in(data: Data, path: Path) -> RankFacts:
    match = _FIRST_TIME.search(data)
    first_us = int.from_bytes(match[1], "little") if match else 0
    is_timed = has_clock(first_us * 1000) and first_us <= TIME_US_MAX
    is_ours = data.rfind(_OURS.encode(), max(0, len(data) - TAIL_BYTES)) >= 0
    identity = identity_of(load_plain(path)) if is_ours else {}
    rank, pid, host = identity.get("rank"), identity.get("pid"), identity.get("host_name")
    return RankFacts(
        rank=rank if isinstance(rank, int) else None,
        pid=pid if isinstance(pid, int) else None,
        host_name=host if isinstance(host, str) else None,
        started_ns=first_us * 1000 if is_timed else None,
        ended_ns=max(_last_us(data, mark, first_us) for mark in _TIME_MARKS) * 1000 if is_timed else None,
    )


def _last_us(data: Data, mark: bytes, first_us: int) -> int:
    """A late time of the snapshot: from its end, the first number that can be one."""
    upto = len(data)
    for _ in range(LOOKS_BACK_MAX):
        upto = data.rfind(mark, 0, upto)
        if upto < 0:
            break
        time_us = int.from_bytes(data[upto + 2 : upto + 9], "little")
        if first_us <= time_us <= first_us + LASTS_US_MAX:
            return time_us
    return first_us
