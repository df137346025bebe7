"""The spools of a session on this host, found as they come: late ranks, elastic restarts.

Stage: shipper process, on the loop's thread. In: the session's folder; out: an upload for each new spool.
One that cannot be read is logged once and left alone; what a shipper left half deleted is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from rankmem_agent.spool.folder import check_ours, spools
from rankmem_protos.errors import RankmemError
from rankmem_ship.marks import FOLDER_NAME, read_mark
from rankmem_ship.send_buffer import SendBuffer
from rankmem_ship.set_aside import SetAsideUpload, failure_of
from rankmem_ship.spool_upload import GONE_PREFIX, SpoolUpload, remove_gone
from rankmem_ship.status import Faults

logger = logging.getLogger(__name__)


class Spools:
    """Finds the spools of one session's folder.

    Args:
        session_dir: the folder.
        buffer: the host's send buffer.
        faults: logs the spools that cannot be read.
        only: look at these alone; default: at all, also those that come later.
    """

    def __init__(
        self, session_dir: Path, buffer: SendBuffer, faults: Faults, only: Iterable[Path] | None = None
    ) -> None:
        self.unreadable: dict[Path, RankmemError] = {}
        """Why, for each that cannot be shipped."""
        self._dir = session_dir
        self._buffer = buffer
        self._faults = faults
        self._only = None if only is None else tuple(only)

    def has_new(self, known: Container[Path]) -> bool:
        """Whether there are spools that are not known; nothing is opened or written."""
        return any(spool not in known and spool not in self.unreadable for spool in spools(self._dir))

    def new_uploads(self, known: Container[Path]) -> list[SpoolUpload]:
        """Uploads of the spools that are not known, in the order of their names."""
        uploads: list[SpoolUpload] = []
        for folder in self._folders():
            if folder in known or folder in self.unreadable:
                continue
            try:
                check_ours(folder)
                upload = self._upload(folder)
            except FileNotFoundError:
                continue  # it was delivered and removed meanwhile
            except Exception as exc:  # noqa: BLE001  a spool's own: what is in its files may be anything
                self.unreadable[folder], _ = failure_of(exc)
                self._faults.log(str(folder), f"cannot ship {folder}: {self.unreadable[folder]}")
                continue
            logger.info("found %s (rank %d, pid %d)", folder.name, upload.meta.rank, upload.meta.pid)
            uploads.append(upload)
        return uploads

    def _upload(self, folder: Path) -> SpoolUpload:
        """The spool's upload; where an earlier shipper set it aside, one that reports the rest as missing.
        What lies in the folder for these is tried again: the user named it."""
        upload = SpoolUpload(folder, self._buffer)
        mark = read_mark(folder)
        if mark is None or folder.parent.name == FOLDER_NAME:
            return upload
        return SetAsideUpload(upload, mark.error())

    def _folders(self) -> Sequence[Path]:
        if self._only is not None:
            return self._only
        try:
            children = sorted(self._dir.iterdir())
        except FileNotFoundError:
            return ()
        for child in children:
            if child.name.startswith(GONE_PREFIX):
                remove_gone(child)  # a shipper died while it deleted
        return [c for c in children if (c / "meta.json").exists()]
