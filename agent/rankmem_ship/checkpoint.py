"""The checkpoint of a spool: the pairing state at a record, in one file that is whole or absent.

Stage: shipper process. In and out: rankmem_ship.pairing.state.PairingState. Written to a temporary name,
synced, renamed, and the folder synced, before any segment that it replaces is deleted. So a full disk
must not stop it, or nothing would be deleted any more: the temporary file's blocks are reserved beforehand.

Format: a numpy ``.npz`` archive (a zip, each member with its CRC) of plain arrays, one of which,
``facts``, is UTF-8 JSON: ``format`` "rankmem-checkpoint", ``version``, and the state's plain fields.
Nothing in it is pickled, and nothing in it is ever unpickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from rankmem_agent.spool.whole_file import sync_folder
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.pairing.state import PairingState

CHECKPOINT_NAME: Final = "checkpoint"
TEMPORARY_NAME: Final = f"{CHECKPOINT_NAME}.new"
RESERVE_BYTES_MIN: Final = 256 << 10
"""The least that is reserved for the next checkpoint; 2,000 live blocks take half of it."""
RESERVE_FACTOR: Final = 2
"""Times the size of the last checkpoint: how much more may be live by then."""
CHECKPOINT_VERSION: Final = 9
_FORMAT: Final = "rankmem-checkpoint"
_ARRAYS: Final = (
    "live", "ended", "calls", "ranges", "markers", "threads", "modules", "weights", "devices", "categories",
    "tags", "lines", "steps", "parts", "compared", "templates", "step_ends",
)  # fmt: skip
_PLAIN: Final = tuple(
    f.name for f in dataclasses.fields(PairingState) if f.name not in (*_ARRAYS, "stacks_sent")
)


def save_checkpoint(folder: Path, state: PairingState) -> None:
    """Write the state into the spool's folder, durably, in place of the last checkpoint.

    Raises:
        OSError: it could not be written; the last one is untouched.
    """
    facts = {name: getattr(state, name) for name in _PLAIN}
    text = json.dumps({"format": _FORMAT, "version": CHECKPOINT_VERSION, "state": facts})
    arrays: dict[str, Any] = {name: getattr(state, name) for name in _ARRAYS}
    temporary = folder / TEMPORARY_NAME
    with open(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
        np.savez(file, allow_pickle=False, facts=np.frombuffer(text.encode(), np.uint8), **arrays)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
        size_bytes = file.tell()
    temporary.rename(folder / CHECKPOINT_NAME)
    sync_folder(folder)
    reserve(folder, RESERVE_FACTOR * size_bytes)


def reserve(folder: Path, size_bytes: int = 0) -> None:
    """Reserve blocks for the next checkpoint; without them it may fail."""
    with contextlib.suppress(OSError):
        fd = os.open(folder / TEMPORARY_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, max(size_bytes, RESERVE_BYTES_MIN))
        finally:
            os.close(fd)


def load_checkpoint(folder: Path) -> PairingState | None:
    """The state in the spool's checkpoint; None if it has none.

    Raises:
        RankmemError: INVALID if the file is damaged, UNSUPPORTED if another version of rankmem wrote it.
    """
    path = folder / CHECKPOINT_NAME
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            facts = json.loads(archive["facts"].tobytes())
            if facts["format"] != _FORMAT:
                raise ValueError(f"format is {facts['format']!r}")
            if facts["version"] != CHECKPOINT_VERSION:
                raise RankmemError(
                    Code.UNSUPPORTED,
                    f"{path} has version {facts['version']}; this rankmem reads only {CHECKPOINT_VERSION}",
                    "ship it with the version of rankmem that wrote it",
                )
            return _state(facts["state"], {name: archive[name] for name in _ARRAYS})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as exc:
        raise RankmemError(Code.INVALID, f"{path} is not a readable checkpoint: {exc}") from exc


def _state(plain: dict[str, Any], arrays: dict[str, Any]) -> PairingState:
    empty = PairingState()
    for name, array in arrays.items():
        if array.dtype != getattr(empty, name).dtype or array.ndim != 1:
            raise ValueError(f"{name} does not have the layout of this version")
    return PairingState(**{**plain, "notes": tuple(plain["notes"])}, **arrays)
