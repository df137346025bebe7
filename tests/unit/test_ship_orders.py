"""Orders at the shipper: each is one row of the rank's next batch, however often it was told."""

from __future__ import annotations

from pathlib import Path

from rankmem_protos.collector_pb2 import Order
from rankmem_ship.orders import Orders
from rankmem_ship.send_buffer import SendBuffer
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
