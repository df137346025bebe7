"""Orders of ``rankmem control``: from the aggregator to the rank's control page, and a row for each.

Stage: shipper process, on the loop's thread. In: ``Order`` replies. Out: an order written into the spool's
control page, where the tap reads it as a step ends, and rows of ``control_order``, attached to the rank's
next batch. The aggregator tells an order again on each connection, so none is kept on disk: one that the page
has is not written again. It never waits for the trainer.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from rankmem_agent.spool.layout import UNKNOWN, Detail
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.collector_pb2 import Order
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.spool_upload import Attachments, SpoolUpload

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 16
"""Orders that a rank has not taken yet, since no step of it has ended; of more the earliest are dropped, and
their rows say so."""
DETAIL_OF: Final = {
    "start": Detail.FULL,
    "full": Detail.FULL,
    "stop": Detail.EVENTS,
    "summary": Detail.EVENTS,
    "auto": Detail.AUTO,
}
"""What each order sets."""
_UNKNOWN: Final = "the shipper does not know this order: use one version of rankmem everywhere"
_TOO_MANY: Final = f"no step ended while {WAITING_MAX} later orders came: it was dropped"
_NO_READER: Final = (
    "nothing in the rank reads orders: it was started by an older version of rankmem, or records without the "
    "tap (rankmem doctor)"
)


class Orders:
    """The orders of the ranks whose spools are shipped here."""

    def __init__(self) -> None:
        self._waiting: dict[Path, list[Order]] = {}
        self._unsent: dict[Path, dict[int, dict[str, Any]]] = {}
        """Rows by order: one that is told on each connection is one row."""

    def take(self, order: Order, upload: SpoolUpload, host_time_ns: int) -> None:
        """An order for a rank has come.

        Args:
            host_time_ns: now, in the rank's host time.
        """
        obstacle = _obstacle(order, upload)
        self._note(order, upload, host_time_ns, obstacle)
        if obstacle is None and order.order_id > upload.reader.control_value("order_number"):
            waiting = self._waiting.setdefault(upload.folder, [])
            if all(each.order_id != order.order_id for each in waiting):
                waiting.append(order)
                waiting.sort(
                    key=lambda each: each.order_id
                )  # one that is told again may be earlier than others
            if len(waiting) > WAITING_MAX:
                self._note(waiting.pop(0), upload, host_time_ns, _TOO_MANY)

    def give(self, uploads: Iterable[SpoolUpload]) -> None:
        """Write what waits into the pages of ranks that have read the order before."""
        by_folder = {upload.folder: upload for upload in uploads}
        for folder in list(self._waiting):
            upload, waiting = by_folder.get(folder), self._waiting[folder]
            if upload is not None and waiting and _give(upload, waiting[0]):
                logger.info("order %d is in %s", waiting[0].order_id, folder.name)
                del waiting[0]
            if upload is None or not waiting:
                del self._waiting[folder]
        for folder in [each for each in self._unsent if each not in by_folder]:
            del self._unsent[folder]

    def _note(self, order: Order, upload: SpoolUpload, host_time_ns: int, obstacle: str | None) -> None:
        row = _row(order, upload, host_time_ns, obstacle)
        self._unsent.setdefault(upload.folder, {})[order.order_id] = row

    def attached(self, upload: SpoolUpload, attachments: Attachments) -> Attachments:
        """The attachments of the upload's next batch with the rows that are due."""
        due = self._unsent.get(upload.folder)
        if not due:
            return attachments

        def rows() -> list[Any]:
            del self._unsent[upload.folder]
            return [*attachments.rows(), ("control_order", rows_of("control_order", list(due.values())))]

        return dataclasses.replace(attachments, rows=rows, due=True)


def _obstacle(order: Order, upload: SpoolUpload) -> str | None:
    if order.what not in DETAIL_OF or not 0 < order.order_id <= NUMBER_MAX:
        return _UNKNOWN
    return None if upload.reader.takes_orders else _NO_READER


def _give(upload: SpoolUpload, order: Order) -> bool:
    return upload.reader.give_order(
        order.order_id,
        DETAIL_OF[order.what],
        order.step_first,
        order.step_last if order.HasField("step_last") else UNKNOWN,
    )


def _row(order: Order, upload: SpoolUpload, host_time_ns: int, obstacle: str | None) -> dict[str, Any]:
    meta = upload.meta
    return {
        "session_id": meta.session_id,
        "attempt": meta.attempt,
        "rank": meta.rank,
        "order_id": min(order.order_id, NUMBER_MAX),
        "what": order.what,
        "step_first": min(order.step_first, NUMBER_MAX),
        "step_last": min(order.step_last, NUMBER_MAX) if order.HasField("step_last") else None,
        "asked_by": order.asked_by or None,
        "asked_ns": min(order.asked_ns, NUMBER_MAX),
        "received_ns": host_time_ns,
        "obstacle": obstacle,
    }
