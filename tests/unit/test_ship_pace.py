"""A path that dies within some bytes: batches shrink until one gets through, and grow again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmem_ship.encoding import EncodedBatch
from rankmem_ship.pace import BATCH_RECORDS, GROW_AFTER, SHRINKS_MAX, SPOOL_BATCHES_MAX, Pace
from rankmem_ship.send_buffer import SendBuffer
from rankmem_ship.spool_upload import Attachments, SpoolUpload
from spool_synthetic import SyntheticSpool, training_records

pytestmark = pytest.mark.slow

STEPS = 6_000


@pytest.fixture
def spool(tmp_path: Path) -> SyntheticSpool:
    spool = SyntheticSpool(path=tmp_path / "spool")
    spool.append(training_records(spool, STEPS))
    spool.end()
    return spool


@pytest.fixture
def upload(spool: SyntheticSpool) -> Iterator[SpoolUpload]:
    upload = SpoolUpload(spool.path, SendBuffer())
    upload.opened(-1)
    yield upload
    upload.close()


def _sent(upload: SpoolUpload) -> list[EncodedBatch]:
    """All that goes out now."""
    sent = []
    while (batch := upload.next_batch(Attachments)) is not None:
        sent.append(batch)
    return sent


def test_a_connection_that_brings_nothing_makes_batches_smaller_and_fewer(upload: SpoolUpload) -> None:
    lengths, counts, again = [], [], list[EncodedBatch]()
    for _ in range(SHRINKS_MAX + 2):
        sent = [*again, *_sent(upload)]
        lengths.append(sent[0].message.sequence_last + 1)
        counts.append(len(sent))
        upload.connection_broke()
        again = upload.opened(-1)
    assert lengths == [BATCH_RECORDS >> 2 * min(times, SHRINKS_MAX) for times in range(SHRINKS_MAX + 2)]
    assert counts[-2:] == [1, 1], "one small batch, and never less"


def test_batches_that_were_stored_though_nobody_heard_of_it_are_no_failure(upload: SpoolUpload) -> None:
    first = _sent(upload)[0]
    upload.connection_broke()
    again = upload.opened(first.message.sequence_last)
    assert again
    assert again[0].message.sequence_first == first.message.sequence_last + 1


def test_a_connection_that_brought_something_leaves_batches_as_they_are(upload: SpoolUpload) -> None:
    sent = _sent(upload)
    upload.acknowledged(sent[0].message.sequence_last)
    upload.connection_broke()
    assert list(upload.opened(sent[0].message.sequence_last)) == sent[1:]


def test_a_refusal_that_opening_again_may_cure_leaves_batches_as_they_are(upload: SpoolUpload) -> None:
    sent = _sent(upload)
    upload.acknowledged(sent[0].message.sequence_last)
    upload.disconnected()
    upload.opened(sent[0].message.sequence_last)
    upload.disconnected()
    assert list(upload.opened(sent[0].message.sequence_last)) == sent[1:]


@pytest.mark.parametrize("bytes_max", [600_000, 45_000])
def test_over_a_path_that_dies_within_some_bytes_everything_arrives_in_order(
    spool: SyntheticSpool, upload: SpoolUpload, bytes_max: int
) -> None:
    """The other end has what fits; every connection begins where that stopped."""
    stored, connections, again = -1, 0, list[EncodedBatch]()
    while stored < spool.next_seq:
        connections += 1
        assert connections < 2_000
        passed = 0
        for batch in (*again, *_sent(upload)):
            passed += batch.size_bytes
            if passed > bytes_max:
                break
            assert batch.message.sequence_first == stored + 1
            stored = batch.message.sequence_last
        upload.connection_broke()
        again = upload.opened(stored)
    assert connections > 3


def test_success_over_one_connection_makes_them_larger_again() -> None:
    pace = Pace()
    while pace.shrink():
        pass
    assert (pace.batch_records, pace.in_flight_max) == (128, 1)
    pace.stored(GROW_AFTER - 1)
    pace.connected()
    pace.stored(GROW_AFTER - 1)
    assert pace.batch_records == 128, "a connection that dies so soon is not to be trusted with more"
    for _ in range(SHRINKS_MAX + 1):
        pace.stored(GROW_AFTER)
    assert (pace.batch_records, pace.in_flight_max) == (BATCH_RECORDS, SPOOL_BATCHES_MAX)
