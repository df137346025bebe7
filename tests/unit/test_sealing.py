"""The checksum of a message: whatever bit is flipped, nothing else than what was sent is taken."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest
from google.protobuf.message import DecodeError

from rankmem_protos import collector_pb2 as pb
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.sealing import DamagedError, seal, unseal
from sample_batches import RankSource

Message = TypeVar("Message", pb.IngestRequest, pb.IngestReply)
LARGE_FLIPS = 200


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def taken(kind: Callable[[bytes], Message], sent: Message, bits: Iterable[int]) -> int:
    """How many of the flips were seen; every other one must have changed nothing."""
    data, seen = seal(sent).SerializeToString(), 0
    for bit in bits:
        try:
            found = unseal(kind(flipped(data, bit)), must=True)
        except (DecodeError, DamagedError):
            seen += 1
            continue
        assert found == sent, f"bit {bit}"
    return seen


def test_no_bit_of_a_small_batch_can_be_flipped_unseen() -> None:
    batch = RankSource().batch(2)
    del batch.tables[1:]
    sent = pb.IngestRequest(batch=batch)
    bits = range(8 * len(seal(sent).SerializeToString()))
    assert taken(pb.IngestRequest.FromString, sent, bits) == len(bits)


def test_no_bit_of_a_large_batch_can_be_flipped_unseen() -> None:
    sent = pb.IngestRequest(batch=RankSource().batch(20_000))
    size = 8 * len(seal(sent).SerializeToString())
    bits = random.Random(4).sample(range(size), LARGE_FLIPS)
    assert taken(pb.IngestRequest.FromString, sent, bits) == LARGE_FLIPS


@pytest.mark.parametrize(
    "sent",
    [
        pb.IngestReply(ack=pb.Ack(spool_id="s", batch_number=7, last_sequence=99)),
        pb.IngestReply(spool_state=pb.SpoolState(spool_id="s", last_sequence=-1)),
        pb.IngestReply(clock_reply=pb.ClockReply(sent_ns=1, received_ns=2, replied_ns=3)),
        pb.IngestReply(welcome=pb.Welcome(protocol_version=1, database_id="d", checksums=True)),
    ],
    ids=lambda reply: str(reply.WhichOneof("body")),
)
def test_no_bit_of_a_reply_can_be_flipped_unseen(sent: pb.IngestReply) -> None:
    bits = range(8 * len(seal(sent).SerializeToString()))
    assert taken(pb.IngestReply.FromString, sent, bits) == len(bits)


def test_what_is_not_sealed_is_taken_where_it_need_not_be_and_nowhere_else() -> None:
    plain = pb.IngestRequest(clock_probe=pb.ClockProbe(sent_ns=5))
    assert unseal(plain, must=False) is plain
    with pytest.raises(DamagedError) as raised:
        unseal(plain, must=True)
    assert raised.value.code is Code.UNAVAILABLE  # so that it is sent again


def test_bytes_with_a_right_checksum_that_are_no_message_are_refused() -> None:
    import zlib

    data = b"\xff\xff\xff"
    sealed = pb.IngestRequest(sealed=pb.Sealed(crc32=zlib.crc32(data), message=data))
    with pytest.raises(RankmemError) as raised:
        unseal(sealed, must=True)
    assert raised.value.code is Code.INVALID
