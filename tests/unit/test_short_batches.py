"""What goes out at a flush and what waits: behind a slow aggregator batches become larger, not more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rankmem_ship.pace import BATCH_RECORDS
from rankmem_ship.send_buffer import HELD_BATCHES_MAX, SHORT_BATCHES_MAX, SendBuffer
from rankmem_ship.spool_upload import Attachments, SpoolUpload
from spool_synthetic import SyntheticSpool, training_records


@pytest.fixture
def spool(tmp_path: Path) -> SyntheticSpool:
    return SyntheticSpool(path=tmp_path / "spool", alive=True)


@pytest.fixture
def upload(spool: SyntheticSpool) -> Iterator[SpoolUpload]:
    upload = SpoolUpload(spool.path, SendBuffer())
    upload.opened(-1)
    assert (
        upload.next_batch(Attachments) is None
    )  # what was there when it was opened goes out at once: nothing
    yield upload
    upload.close()


def _full(spool: SyntheticSpool, batches: float) -> np.ndarray:
    records = training_records(spool, 1000)
    return np.resize(records, int(batches * BATCH_RECORDS))


def _last_sequences(upload: SpoolUpload) -> list[int]:
    """Of all that goes out now."""
    sent = []
    while (batch := upload.next_batch(Attachments)) is not None:
        sent.append(batch.message.sequence_last)
    return sent


def test_a_short_batch_waits_for_its_flush_and_then_goes_once(
    spool: SyntheticSpool, upload: SpoolUpload
) -> None:
    spool.append(training_records(spool, 10))
    assert _last_sequences(upload) == []
    upload.queue.flush()
    assert _last_sequences(upload) == [spool.next_seq - 1]
    spool.append(training_records(spool, 10))
    assert _last_sequences(upload) == [], "that flush is over"


def test_a_full_batch_is_packed_ahead_and_goes_out_at_the_flush_with_what_follows_it(
    spool: SyntheticSpool, upload: SpoolUpload
) -> None:
    spool.append(_full(spool, 1.5))
    assert _last_sequences(upload) == []
    assert upload.reader.cursor == spool.next_seq, "it was read and packed meanwhile"
    upload.queue.flush()
    assert _last_sequences(upload) == [BATCH_RECORDS - 1, spool.next_seq - 1]


def test_a_backlog_does_not_wait_for_flushes(spool: SyntheticSpool, upload: SpoolUpload) -> None:
    num_batches = HELD_BATCHES_MAX + 3
    spool.append(_full(spool, num_batches))
    sent = _last_sequences(upload)
    assert sent == [(number + 1) * BATCH_RECORDS - 1 for number in range(num_batches - HELD_BATCHES_MAX)]
    upload.queue.flush()
    assert len(_last_sequences(upload)) == HELD_BATCHES_MAX


def test_a_short_batch_waits_while_two_are_not_acknowledged(
    spool: SyntheticSpool, upload: SpoolUpload
) -> None:
    records = training_records(spool, 100)
    parts = [records[begin : begin + 50] for begin in range(0, 300, 50)]
    sent = []
    for part in parts[:SHORT_BATCHES_MAX]:
        spool.append(part)
        upload.queue.flush()
        sent += _last_sequences(upload)
    assert len(sent) == SHORT_BATCHES_MAX
    for part in parts[SHORT_BATCHES_MAX:]:
        spool.append(part)
        upload.queue.flush()
        assert _last_sequences(upload) == []
    upload.acknowledged(sent[0])
    assert _last_sequences(upload) == [spool.next_seq - 1], "all that came meanwhile is one batch"


def test_what_goes_out_at_a_flush_does_not_count_as_behind(
    spool: SyntheticSpool, upload: SpoolUpload
) -> None:
    spool.append(_full(spool, SHORT_BATCHES_MAX + 0.5))
    upload.queue.flush()
    assert len(_last_sequences(upload)) == SHORT_BATCHES_MAX + 1


def test_the_last_batch_waits_for_nothing(spool: SyntheticSpool, upload: SpoolUpload) -> None:
    spool.append(_full(spool, 1.5))
    assert _last_sequences(upload) == []
    spool.end()
    sent = _last_sequences(upload)
    assert sent == [BATCH_RECORDS - 1, spool.next_seq]


def test_what_waited_for_a_flush_goes_out_at_once_over_another_connection(
    spool: SyntheticSpool, upload: SpoolUpload
) -> None:
    spool.append(_full(spool, 1.5))
    assert _last_sequences(upload) == []
    upload.disconnected()
    assert not upload.opened(-1)
    assert _last_sequences(upload) == [BATCH_RECORDS - 1, spool.next_seq - 1]
