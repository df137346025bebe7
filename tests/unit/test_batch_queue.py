"""The queue admits by declared size, in order, and never lets one wait for ever."""

from __future__ import annotations

import threading

from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_aggregator.ingest.batch_queue import BatchQueue, Submission

TIMEOUT_S = 30.0
SPOOL = Spool(spool_id="p", session_id="s", attempt=0, rank=0)


def submission(number: int, size_bytes: int) -> Submission:
    batch = IncomingBatch(
        spool=SPOOL, batch_number=number, sequence_first=number, sequence_last=number, final=False,
        rows={}, num_rows=1, tallest_rows=1, size_bytes=size_bytes,
    )  # fmt: skip
    return Submission(batch=batch, done=lambda outcome: None)


def taken(queue: BatchQueue) -> list[int]:
    group = queue.take(rows_max=100, bytes_max=1 << 30, wait_s=0.0)
    return [one.batch.batch_number for one in group or []]


def waiting(queue: BatchQueue, count: int) -> None:
    """Until so many stand in line; they do so by themselves."""
    done = threading.Event()
    while len(queue._waiters) < count:
        done.wait(0.001)


def test_batches_are_admitted_in_the_order_in_which_they_came() -> None:
    queue = BatchQueue(batches_max=100, bytes_max=100)
    assert queue.put(submission(0, 90))
    admitted: list[int] = []

    def stream(number: int) -> None:
        assert queue.admit(60)
        admitted.append(number)
        assert queue.put(submission(number, 60), 60)

    threads = [threading.Thread(target=stream, args=[number]) for number in range(1, 6)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        waiting(queue, number)
    for number in range(6):
        assert taken(queue) == [number]
        if number < 5:
            threads[number].join(TIMEOUT_S)
            assert admitted == list(range(1, number + 2))


def test_a_batch_larger_than_the_queue_goes_alone() -> None:
    queue = BatchQueue(batches_max=100, bytes_max=100)
    assert queue.put(submission(0, 10_000))
    assert taken(queue) == [0]


def test_what_is_being_decoded_counts_and_is_given_back_when_it_is_refused() -> None:
    queue = BatchQueue(batches_max=100, bytes_max=100)
    assert queue.admit(90)
    assert queue.size_bytes == 90
    second = threading.Thread(target=queue.put, args=[submission(1, 50)])
    second.start()
    waiting(queue, 1)
    queue.release(90)
    second.join(TIMEOUT_S)
    assert (queue.size_bytes, taken(queue), queue.size_bytes) == (50, [1], 0)


def test_a_narrow_queue_takes_less_and_goes_on() -> None:
    queue = BatchQueue(batches_max=100, bytes_max=800)
    queue.shrink(True)
    assert queue.put(submission(0, 60))
    second = threading.Thread(target=queue.put, args=[submission(1, 60)])
    second.start()
    waiting(queue, 1)
    assert taken(queue) == [0]
    second.join(TIMEOUT_S)
    assert taken(queue) == [1]


def test_closing_lets_all_go_who_wait() -> None:
    queue = BatchQueue(batches_max=1, bytes_max=1000)
    assert queue.put(submission(0, 1))
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(queue.admit(1))) for _ in range(3)]
    for thread in threads:
        thread.start()
    waiting(queue, 3)
    queue.close()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert results == [False] * 3
    assert taken(queue) == [0]
    assert queue.take(rows_max=1, bytes_max=1, wait_s=0.0) is None


def test_a_nudge_gives_an_empty_group_and_no_end() -> None:
    queue = BatchQueue(batches_max=1, bytes_max=1000)
    queue.wake()
    assert queue.take(rows_max=1, bytes_max=1, wait_s=0.0) == []
