"""TensorFlow's RunMetadata and StepStats: the nodes of a step, one at a time.

Stage: readers; the process of ``rankmem import``. In: a file, binary or text; out: (device, node). A binary
file is walked by hand down to its nodes, which are decoded one by one, so that memory does not grow with
it. The messages are declared by us (rankmem_protos/step_stats.proto): their numbers are TensorFlow's.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from rankmem_imports.files.compressed import BROKEN, is_gzip, open_bytes, read_whole
from rankmem_imports.tensorflow.recognition import TEXT_FORM, depth_of, varint
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.step_stats_pb2 import NodeExecStats, RunMetadata

TEXT_BYTES_MAX: Final = 32 << 20
"""Of a text file, which is read whole by protobuf's reader in Python: two minutes. Larger ones are saved in
binary."""
HEAD_BYTES: Final = 4096
"""Read from a file's beginning to find its form."""
GZIP_BYTES_MAX: Final = 512 << 20
"""Of a binary file in gzip, unpacked, which is held in memory; a plain one is mapped."""

_STEP_STATS, _DEV_STATS, _NODE_STATS, _DEVICE_NAME = 1, 1, 2, 1
_BYTES_FIELD: Final = 2
"""Protobuf's wire type of messages, texts and bytes."""


def nodes_of(path: Path) -> Iterator[tuple[str, NodeExecStats]]:
    """The nodes in the file's order, each with its device.

    Raises:
        RankmemError: INVALID with the place where the file is neither, EXHAUSTED where it is too large.
    """
    try:
        yield from _nodes(path)
    except BROKEN as error:
        raise _broken(path, path.stat().st_size, str(error)) from error


def _nodes(path: Path) -> Iterator[tuple[str, NodeExecStats]]:
    with open_bytes(path) as file:
        head = file.read(HEAD_BYTES)
    if TEXT_FORM.match(head):
        yield from _nodes_of_text(path)
        return
    depth = depth_of(head)
    if depth is None:
        raise _broken(path, 0, "it does not begin with step_stats")
    if is_gzip(path):
        content = read_whole(path, GZIP_BYTES_MAX)
        if content is None:
            raise _too_large(path, GZIP_BYTES_MAX)
        yield from _nodes_of_binary(path, memoryview(content), depth)
        return
    with path.open("rb") as plain:
        mapped = mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ)
    yield from _nodes_of_binary(path, memoryview(mapped), depth)


def _nodes_of_text(path: Path) -> Iterator[tuple[str, NodeExecStats]]:
    text = read_whole(path, TEXT_BYTES_MAX)
    if text is None:
        raise _too_large(path, TEXT_BYTES_MAX)
    message = RunMetadata()
    match = TEXT_FORM.match(text)
    assert match is not None
    target = message if match[1] == b"step_stats" else message.step_stats
    try:
        text_format.Parse(text.decode("utf-8", "replace"), target, allow_unknown_field=True)
    except (text_format.ParseError, RecursionError) as error:
        raise RankmemError(
            Code.INVALID, f"{path} is not RunMetadata in text: {error}", "save it again, or in binary"
        ) from error
    for device in message.step_stats.dev_stats:
        for node in device.node_stats:
            yield device.device, node


def _nodes_of_binary(path: Path, content: memoryview, depth: int) -> Iterator[tuple[str, NodeExecStats]]:
    """``depth``: 3 for RunMetadata, 2 for StepStats, as :func:`depth_of` returns."""
    try:
        steps = [content] if depth == 2 else _fields(content, _STEP_STATS)
        for step in steps:
            for device in _fields(step, _DEV_STATS):
                name = b"".join(map(bytes, _fields(device, _DEVICE_NAME))).decode("utf-8", "replace")
                for node in _fields(device, _NODE_STATS):
                    yield name, NodeExecStats.FromString(bytes(node))
    except DecodeError as error:
        raise _broken(path, len(content), "a node in it is damaged") from error
    except ValueError as error:
        raise _broken(path, len(content), str(error)) from error


def _fields(message: memoryview, number: int) -> Iterator[memoryview]:
    """The values of one field of messages or texts, as they stand in a message.

    Raises:
        ValueError: the message breaks off.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = varint(message, at)
        kind = tag & 7
        if kind == _BYTES_FIELD:
            length, at = varint(message, at)
            if length > end - at:
                raise ValueError(f"a field of {length} bytes breaks off after {end - at}")
            if tag >> 3 == number:
                yield message[at : at + length]
            at += length
        elif kind == 0:
            _, at = varint(message, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}, which none has")
    if at > end:
        raise ValueError("a number breaks off")


def _broken(path: Path, place: int, why: str) -> RankmemError:
    return RankmemError(
        Code.INVALID,
        f"{path} is not a complete RunMetadata or StepStats ({place} bytes): {why}",
        "save it again",
    )


def _too_large(path: Path, most: int) -> RankmemError:
    return RankmemError(Code.EXHAUSTED, f"{path} has more than {most} bytes", "save single steps, in binary")
