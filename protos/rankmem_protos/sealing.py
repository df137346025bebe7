"""Messages of the Ingest stream with their checksum: sealed at one end, opened at the other.

Stage: wire, both ends. In: a request or a reply; out: one that carries it as bytes with their CRC-32, and
back. A plain-text link has nothing else but TCP's sum of 16 bits: of single bits that were flipped behind it,
67 % were stored changed. README.md next to collector.proto has what the checksum covers, and what happens
between versions.
"""

from __future__ import annotations

import zlib
from typing import TypeVar

from google.protobuf.message import DecodeError

from rankmem_protos.collector_pb2 import IngestReply, IngestRequest, Sealed
from rankmem_protos.errors import Code, RankmemError

Message = TypeVar("Message", IngestRequest, IngestReply)


class DamagedError(RankmemError):
    """A message was changed on its way; sending it again may help."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Code.UNAVAILABLE,
            f"a message arrived damaged: {what}",
            "nothing is lost, it is sent again; if it happens often, look at the network between the hosts",
        )


def seal(message: Message) -> Message:
    """The message as bytes with their checksum, in a message of the same kind."""
    data = message.SerializeToString()
    return type(message)(sealed=Sealed(crc32=zlib.crc32(data), message=data))


def unseal(message: Message, *, must: bool) -> Message:
    """The sealed message; one that is not sealed is returned unchanged, unless all of them ``must`` be.

    Raises:
        DamagedError: the bytes do not have their checksum, or there is none where one must be.
    """
    if message.WhichOneof("body") != "sealed":
        if must:
            raise DamagedError("it has no checksum")
        return message
    data = message.sealed.message
    found = zlib.crc32(data)
    # Empty bytes have the checksum 0, and so has a message whose checksum was lost.
    if not data or found != message.sealed.crc32:
        raise DamagedError(f"its checksum is {message.sealed.crc32:08x}, that of its bytes {found:08x}")
    try:
        return type(message).FromString(data)
    except DecodeError as exc:
        raise RankmemError(Code.INVALID, f"the sealed bytes are not a message: {exc}") from exc
