"""Stacks: their content hash, which is their name on the wire, and their frames as rows.

Stage: pairing; shipper process. The hash is over the frames' texts, so that one line of code has one
stack over all ranks, hosts and restarts. A cache by the spool's stack ids; nothing here is state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from rankmem_agent.privacy import Privacy
from rankmem_ship.pairing.columns import record_batch
from rankmem_ship.pairing.state import Array
from rankmem_ship.spool_reader.string_table import Frame, StringTable


def stack_hash(frames: Iterable[tuple[str, int, str]]) -> int:
    """The signed 64-bit content hash of (file_path, line_number, function) frames, in their order."""
    digest = hashlib.blake2b(digest_size=8)
    for file_path, line, function in frames:
        digest.update(f"{file_path}\0{line}\0{function}\n".encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest(), "little", signed=True)


class Stacks:
    """The stacks of one spool on the wire.

    Args:
        strings: the spool's strings.
        project_root: files inside it are named relative to it; empty: none are.
        privacy: what of a path leaves the host; the hash is over what does.
    """

    def __init__(self, strings: StringTable, project_root: str, privacy: Privacy) -> None:
        self._privacy = privacy
        self._strings = strings
        self._root = project_root.rstrip("/") + "/" if project_root.strip("/") else ""
        self._hashes = np.zeros(1, np.int64)
        self._hashed = np.zeros(1, np.bool_)

    def hashes(self, stack_ids: Array) -> Array:
        """The content hashes (int64) of string-table stack ids; 0 gives 0."""
        if not len(stack_ids):
            return np.zeros(0, np.int64)
        self._grow(int(stack_ids.max()) + 1)
        for stack_id in np.unique(stack_ids[~self._hashed[stack_ids]]):
            if stack_id:
                self._hashes[stack_id] = stack_hash(self._frames(int(stack_id)))
            self._hashed[stack_id] = True
        found: Array = self._hashes[stack_ids]
        return found

    def rows(self, stack_ids: Array) -> pa.RecordBatch:
        """Rows of stack_frame for these stacks, frames in order."""
        frames = [self._frames(int(stack_id)) for stack_id in stack_ids]
        lengths = [len(stack) for stack in frames]
        flat = [frame for stack in frames for frame in stack]
        columns = {
            "stack_id": pa.array(np.repeat(self.hashes(stack_ids), lengths)),
            "ordering": pa.array([i for n in lengths for i in range(n)], pa.int32()),
            "file_path": pa.array([f[0] for f in flat], pa.string()),
            "line_number": pa.array([f[1] for f in flat], pa.int32()),
            "function": pa.array([f[2] for f in flat], pa.string()),
        }
        return record_batch("stack_frame", columns, len(flat))

    def _frames(self, stack_id: int) -> list[tuple[str, int, str]]:
        return [self._frame(frame) for frame in self._strings.stack(stack_id)]

    def _frame(self, frame: Frame) -> tuple[str, int, str]:
        inside = bool(self._root) and frame.file.startswith(self._root)
        path = frame.file[len(self._root) :] if inside else frame.file
        path, line = self._privacy.frame(path, min(frame.line, 2**31 - 1), inside=inside)
        return path, line, frame.function

    def _grow(self, length: int) -> None:
        if length > len(self._hashes):
            size = max(length, 2 * len(self._hashes))
            self._hashes = np.concatenate([self._hashes, np.zeros(size - len(self._hashes), np.int64)])
            self._hashed = np.concatenate([self._hashed, np.zeros(size - len(self._hashed), np.bool_)])
