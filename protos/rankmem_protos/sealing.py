"""Messages of the Ingest stream with their checksum: sealed at one end, opened at the other.

Stage: wire, both ends. In: a request or a reply; out: one that carries it as bytes beside their CRC-32, and
back. A plain-text link has nothing else but TCP's sum of 16 bits: of single bits that were flipped behind it,
67 % were stored changed. What the checksum covers, and what happens between versions, stands in README.md
beside collector.proto.
"""

from __future__ import annotations

import zlib
from typing import TypeVar

from google.protobuf.message import DecodeError

from rankmem_protos.collector_pb2 import IngestReply, IngestRequest, Sealed
from rankmem_protos.errors import Code, RankmemError

Message = TypeVar("Message", IngestRequest, IngestReply)


class DamagedError(RankmemError):
    """What came is not what was sent; sending it again may cure it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Code.UNAVAILABLE,
            f"a message came damaged: {what}",
            "nothing is lost, it is sent again; if it comes often, look at the network between the hosts",
        )


def seal(message: Message) -> Message:
    """The message as bytes with their checksum, in a message of the same kind."""
    data = message.SerializeToString()
    return type(message)(sealed=Sealed(crc32=zlib.crc32(data), message=data))


def unseal(message: Message, *, must: bool) -> Message:
    """What was sealed; a message that is not sealed as it came, unless all of them ``must`` be.

    Raises:
        DamagedError: the bytes do not have their checksum, or there is none where one must be.
    """
    if message.WhichOneof("body") != "sealed":
        if must:
            raise DamagedError("it has no checksum")
        return message
    data = message.sealed.message
    found = zlib.crc32(data)
    # Nothing has the checksum 0, which is also what a message has whose checksum was lost.
    if not data or found != message.sealed.crc32:
        raise DamagedError(f"its checksum is {message.sealed.crc32:08x}, that of its bytes {found:08x}")
    try:
        return type(message).FromString(data)
    except DecodeError as exc:
        raise RankmemError(Code.INVALID, f"what is sealed is no message: {exc}") from exc
