"""Orders at the shipper: each is one row of the rank's next batch, however often it was told."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankmem_protos.collector_pb2 import Order
from rankmem_ship.orders import WAITING_MAX, Orders
from rankmem_ship.send_buffer import SendBuffer
from rankmem_ship.spool_reader.segments import CONTROL_DTYPE
from rankmem_ship.spool_upload import Attachments, SpoolUpload
from spool_synthetic import SyntheticSpool


def test_an_order_that_is_told_on_each_connection_is_one_row(tmp_path: Path) -> None:
    upload = SpoolUpload(SyntheticSpool(path=tmp_path / "0-0-1").path, SendBuffer())
    orders = Orders()
    for host_time_ns in range(100):  # connections that break before a batch is sent
        for order_id in (7, 8):
            told = Order(spool_id=upload.meta.spool_id, order_id=order_id, what="stop", step_first=3)
            orders.take(told, upload, host_time_ns)
    ((table, rows),) = orders.attached(upload, Attachments()).rows()
    assert table == "control_order"
    assert [(row["order_id"], row["received_ns"]) for row in rows.to_pylist()] == [(7, 99), (8, 99)]
    assert not orders.attached(upload, Attachments()).due
    upload.close()


def test_an_order_too_many_is_dropped_and_its_row_says_so_also_where_it_is_told_again(tmp_path: Path) -> None:
    spool = SyntheticSpool(path=tmp_path / "0-0-1")
    page = np.memmap(spool.path / "control", CONTROL_DTYPE, "r+")[:1]
    page["order_reader"] = 1
    upload, orders = SpoolUpload(spool.path, SendBuffer()), Orders()
    for _ in range(2):
        for order_id in range(1, WAITING_MAX + 3):
            told = Order(spool_id=upload.meta.spool_id, order_id=order_id, what="stop", step_first=3)
            orders.take(told, upload, 0)
    ((_, rows),) = orders.attached(upload, Attachments()).rows()
    dropped = {row["order_id"]: row["obstacle"] for row in rows.to_pylist() if row["obstacle"] is not None}
    assert dropped == dict.fromkeys((1, 2), "no step ended while 16 later orders came: it was dropped")
    given = []
    for _ in range(WAITING_MAX + 3):
        orders.give([upload])
        if page["order_number"][0] != page["order_taken"][0]:
            given.append(int(page["order_number"][0]))
            page["order_taken"] = page["order_number"]
    assert given == list(range(3, WAITING_MAX + 3)), "in the order of their numbers"
    upload.close()
