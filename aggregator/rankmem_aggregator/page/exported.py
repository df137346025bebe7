"""An answer in the formats of other programs, and files that other tools read.

Stage: page, in the thread of a request. In: an answer's table, or a reader and a selection; out: the bytes of
a file. Imports no web framework.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv, parquet

from rankmem_aggregator.csv_cells import guarded, no_formula
from rankmem_aggregator.exports.exporting import export
from rankmem_aggregator.page.parameters import RANK, TIME, check_range, integers, parameter, text
from rankmem_aggregator.page.reading import Reading, facts_of
from rankmem_protos.bounds import RANKS_MAX
from rankmem_protos.errors import Code, RankmemError

FILE_BYTES_MAX: Final = 1 << 30
"""Of a file for another tool, which is made whole before it is sent."""
FILE_S: Final = 300.0
"""For making one."""
MARKS_CHARACTERS_MAX: Final = 2000
"""As a link of the page may have."""
SPEEDSCOPE: Final = "https://www.speedscope.app/file-format-schema.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of rows."""

    end: str
    media_type: str
    write: Callable[[pa.Table], bytes]


def _arrow(answer: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, answer.schema) as writer:
        writer.write_table(answer.combine_chunks())
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _parquet(answer: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(answer, sink, compression="zstd")
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _csv(answer: pa.Table) -> bytes:
    """As ``rankmem sql --out FILE.csv``; lists, which CSV has not, as JSON."""
    columns = [
        pa.chunked_array([[None if v is None else json.dumps(v) for v in column.to_pylist()]], pa.string())
        if pa.types.is_nested(column.type)
        else column
        for column in answer.columns
    ]
    names = [no_formula(name) for name in answer.column_names]
    sink = pa.BufferOutputStream()
    csv.write_csv(guarded(pa.Table.from_arrays(columns, names=names)), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _speedscope(answer: pa.Table) -> bytes:
    return json.dumps(speedscope_of(answer)).encode()


FORMATS: Final[Mapping[str, Format]] = {
    "csv": Format(end="csv", media_type="text/csv; charset=utf-8", write=_csv),
    "arrow": Format(end="arrow", media_type="application/vnd.apache.arrow.file", write=_arrow),
    "parquet": Format(end="parquet", media_type="application/vnd.apache.parquet", write=_parquet),
    "speedscope": Format(end="speedscope.json", media_type="application/json", write=_speedscope),
}
"""By name, as in ``/export/{name}/…``."""


def speedscope_of(answer: pa.Table) -> dict[str, Any]:
    """A flame graph as a sampled profile of speedscope: a sample for each node's own bytes.

    Args:
        answer: of ``/flame``: columns parent (row, -1 for the root's), name, bytes, in any order in which
            parents stand before their children.

    Raises:
        RankmemError: INVALID for another answer.
    """
    if not {"parent", "name", "bytes"} <= set(answer.column_names):
        raise RankmemError(Code.INVALID, "only a flame graph goes to speedscope", "save it as parquet or csv")
    parents = [-1 if p is None else int(p) for p in answer["parent"].to_pylist()]
    names = ["unknown" if name is None else str(name) for name in answer["name"].to_pylist()]
    sizes = [int(size) for size in answer["bytes"].to_pylist()]
    own = list(sizes)
    for place, parent in enumerate(parents):
        if parent >= 0:
            own[parent] -= sizes[place]
    frames = {name: place for place, name in enumerate(dict.fromkeys(names))}
    stacks: list[list[int]] = []
    for place, parent in enumerate(parents):
        stacks.append([*(stacks[parent] if parent >= 0 else []), frames[names[place]]])
    samples = [place for place, size in enumerate(own) if size > 0]
    facts = facts_of(answer)
    title = f"memory of rank {facts['rank']}" if facts.get("rank") is not None else "memory"
    return {
        "$schema": SPEEDSCOPE,
        "name": title,
        "exporter": f"rankmem {version('rankmem')}",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": title,
                "unit": "bytes",
                "startValue": 0,
                "endValue": sum(own[place] for place in samples),
                "samples": [stacks[place] for place in samples],
                "weights": [own[place] for place in samples],
            }
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAsked:
    """Parameters of ``/file/…``."""

    rank: int | None = parameter(RANK, "global rank; a snapshot and a trace hold one", default=None)
    ranks: tuple[int, ...] | None = parameter(
        integers(0, RANKS_MAX, at_most=64), "ranks of the page in one file", default=None
    )
    from_ns: int | None = parameter(TIME, "begin, ns since the session's start", name="from", default=None)
    until_ns: int | None = parameter(TIME, "end", name="to", default=None)
    marks: str = parameter(
        text(MARKS_CHARACTERS_MAX), "marks of the page in one file, as in its link", default=""
    )


FILES: Final[Mapping[str, tuple[str, str, str]]] = {
    "snapshot": ("torch-snapshot", "pickle", "application/octet-stream"),
    "perfetto": ("perfetto", "json.gz", "application/gzip"),
    "html": ("html", "html", "application/octet-stream"),  # saved, never shown at the page's own address
}
"""Kinds of ``/file/{kind}``: the kind of ``rankmem export``, the end of its name, its type."""


def file_of(reading: Reading, kind: str, asked: FileAsked) -> bytes:
    """A file of ``rankmem export`` for a rank and a range.

    Raises:
        RankmemError: what an export raises; EXHAUSTED for one that is too large to send.
    """
    check_range(asked.from_ns, asked.until_ns)
    name, end, _ = FILES[kind]
    ranks = asked.ranks if asked.rank is None else (asked.rank,)
    with tempfile.TemporaryDirectory(prefix="rankmem-page-") as folder:
        out = Path(folder) / f"file.{end}"
        export(
            reading.queries,
            name,
            out,
            session=reading.session.session_id,
            ranks=ranks,
            from_ns=reading.absolute(asked.from_ns),
            until_ns=reading.absolute(asked.until_ns),
            marks=asked.marks,
        )
        if out.stat().st_size > FILE_BYTES_MAX:
            raise RankmemError(
                Code.EXHAUSTED,
                f"the file has {out.stat().st_size:,} bytes, more than {FILE_BYTES_MAX:,}",
                f"choose a shorter range, or write it with rankmem export {name} OUT",
            )
        return out.read_bytes()
