"""The CSV files of an Ascend profiler folder, column by column and a piece at a time.

Stage: readers; the process of ``rankmem import``. In: memory_record, operator_memory, npu_module_mem and
static_op_mem as torch_npu, MindSpore and msprof write them; out: the arrays of ``rows``. Times are
decimal microseconds that may end in a tab, totals MB or KB of 1024: both come out exactly. Holds a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from rankmem_imports.ascend.recognition import names_in
from rankmem_imports.ascend.rows import (
    MODULE,
    OPERATOR,
    RECORD,
    SAMPLE,
    STATIC,
    UNKNOWN,
    Names,
    Step,
    Vocabulary,
    as_rows,
    checked,
    device_of,
)
from rankmem_imports.files.compressed import BROKEN, ends_in_line_break, open_bytes
from rankmem_imports.files.csv_errors import in_words
from rankmem_imports.recording import RankFacts
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.pairing.state import Array

PIECE_BYTES: Final = 4 << 20
"""Of a file parsed at a time. A longer line is refused."""

_MICROSECONDS: Final = pa.decimal128(22, 3)
_NAME: Final = pa.dictionary(pa.int32(), pa.string())
_EMPTY: Final = ("", "\t", " ", " \t", "N/A", "N/A\t", "NA", "NaN", "None", "null")
_DEVICE: Final = ("Device Type", "Device", "Device ID", "Device_id")

Cells = Mapping[str, pa.Array]


class CsvSource:
    """A rank's folder of CSV files."""

    def __init__(self, files: Mapping[str, Sequence[Path]], facts: RankFacts) -> None:
        """Args: files: by their table, its slices in order. facts: from the files beside."""
        self.path = next(iter(files.values()))[0]
        self.names = Vocabulary()
        self.facts = facts
        self._files = files

    def records(self) -> Iterator[Array]:
        """RECORD, in the order of the file."""
        return self._each("record", self._record)

    def operators(self) -> Iterator[Array]:
        """OPERATOR."""
        return self._each("operator", self._operator)

    def samples(self) -> Iterator[Array]:
        """None: they are the APP rows of the records."""
        yield np.empty(0, SAMPLE)

    def modules(self) -> Iterator[Array]:
        """MODULE."""
        return self._each("module", self._module)

    def static_blocks(self) -> Iterator[Array]:
        """STATIC."""
        return self._each("static", self._static)

    def steps(self) -> Iterator[Step]:
        """None: they stand in other files."""
        return iter(())

    def device_titles(self) -> dict[str, str]:
        """None: the files have no such names."""
        return {}

    def _each(self, kind: str, rows_of_piece: Callable[[_Piece], Array]) -> Iterator[Array]:
        for path in self._files.get(kind, ()):
            for piece in _pieces(path):
                yield rows_of_piece(piece)

    def _record(self, piece: _Piece) -> Array:
        columns = {
            "time_ns": piece.times("Timestamp(us)"),
            "allocated": piece.sizes("Total Allocated"),
            "reserved": piece.sizes("Total Reserved"),
            "active": piece.sizes("Total Active"),
            "stream": piece.streams(),
            "component": piece.texts("Component", self.names.components),
            "device": piece.devices(self.names.devices),
        }
        return piece.whole(as_rows(RECORD, columns, piece.length), "time_ns", "component", "device")

    def _operator(self, piece: _Piece) -> Array:
        allocated_ns = piece.times("Allocation Time(us)")
        duration = piece.times("Duration(us)")
        released_ns = piece.times("Release Time(us)")
        if not piece.has("Release Time(us)"):  # MindSpore and msprof write only the duration
            known = (allocated_ns != UNKNOWN) & (duration != UNKNOWN)
            released_ns = np.where(known, allocated_ns + np.where(known, duration, 0), UNKNOWN)
        columns = {
            "allocated_ns": allocated_ns,
            "released_ns": released_ns,
            "active_released_ns": piece.times("Active Release Time(us)"),
            "size": piece.sizes("Size"),
            "at_alloc": piece.totals("Allocation"),
            "at_release": piece.totals("Release"),
            "stream": piece.streams(),
            "name": piece.texts("Name", self.names.texts),
            "device": piece.devices(self.names.devices),
        }
        return piece.whole(as_rows(OPERATOR, columns, piece.length), "size", "device")

    def _module(self, piece: _Piece) -> Array:
        columns = {
            "time_ns": piece.times("Timestamp(us)"),
            "reserved": piece.sizes("Total Reserved"),
            "component": piece.texts("Component", self.names.components),
            "device": piece.devices(self.names.devices),
        }
        return piece.whole(as_rows(MODULE, columns, piece.length), "time_ns", "component", "device")

    def _static(self, piece: _Piece) -> Array:
        columns = {
            "first": piece.integers("Node Index Start"),
            "last": piece.integers("Node Index End"),
            "size": piece.sizes("Size"),
            "graph": piece.texts("Graph ID", self.names.texts),
            "model": piece.texts("Model Name", self.names.texts),
            "name": piece.texts("Op Name", self.names.texts),
            "device": piece.devices(self.names.devices),
        }
        return piece.whole(as_rows(STATIC, columns, piece.length), "graph", "name", "device")


class _Piece:
    """Some rows of a file."""

    def __init__(self, path: Path, row_first: int, batch: pa.RecordBatch) -> None:
        self.length = batch.num_rows
        self._path, self._row_first = path, row_first
        self._cells: Cells = {name.strip(): batch.column(name) for name in batch.schema.names}

    def has(self, name: str) -> bool:
        return name in self._cells

    def times(self, name: str) -> Array:
        """Decimal microseconds as ns."""
        if name not in self._cells:
            return np.full(self.length, UNKNOWN)
        cells = self._cells[name]
        # 16 bytes a cell, the low ones first; the high ones carry no more than the sign.
        words = np.frombuffer(cells.buffers()[1], np.int64).reshape(-1, 2)[cells.offset :][: self.length]
        values = np.where(_is_null(cells), UNKNOWN, words[:, 0])
        if ((words[:, 1] != words[:, 0] >> 63) & (values != UNKNOWN)).any():
            raise self._refusal(name, "holds a time of more than 64 bits")
        return checked(values, self._path, name)

    def sizes(self, name: str) -> Array:
        """MB or KB of 1024, whichever there is, as bytes."""
        for unit, scale in (("MB", float(1 << 20)), ("KB", 1024.0)):
            cells = self._cells.get(f"{name}({unit})")
            if cells is not None:
                values = cells.to_numpy(zero_copy_only=False) * scale
                null = _is_null(cells)
                if not np.isfinite(values[~null]).all() or (np.abs(values[~null]) >= float(NUMBER_MAX)).any():
                    raise self._refusal(f"{name}({unit})", "holds a size of more than 64 bits")
                return np.where(null, UNKNOWN, np.rint(np.where(null, 0, values)).astype(np.int64))
        return np.full(self.length, UNKNOWN)

    def totals(self, when: str) -> Array:
        """Allocated, reserved and active at an allocation or release."""
        names = (f"{when} Total {total}" for total in ("Allocated", "Reserved", "Active"))
        return np.stack([self.sizes(name) for name in names], axis=1)

    def integers(self, name: str) -> Array:
        """Whole numbers."""
        cells = self._cells[name]
        filled = cells.fill_null(UNKNOWN).to_numpy(zero_copy_only=False)
        return checked(filled, self._path, name)

    def texts(self, name: str, names: Names) -> Array:
        """Texts by their number in ``names``."""
        if name not in self._cells:
            return np.full(self.length, -1, np.int32)
        return self._coded(name, lambda text: names.number(text.strip()), -1).astype(np.int32)

    def devices(self, names: Names) -> Array:
        """Devices by their number in ``names``."""
        name = next((name for name in _DEVICE if name in self._cells), None)
        if name is None:
            raise self._refusal(" or ".join(_DEVICE[:2]), "is missing")
        try:
            return self._coded(name, lambda text: names.number(device_of(text)), -1).astype(np.int32)
        except ValueError as error:
            raise self._refusal(name, str(error)) from error

    def streams(self) -> Array:
        """Stream pointers."""
        if "Stream Ptr" not in self._cells:
            return np.full(self.length, UNKNOWN)
        return self._coded("Stream Ptr", self._stream, UNKNOWN)

    def whole(self, rows: Array, *required: str) -> Array:
        """The rows.

        Raises:
            RankmemError: INVALID, with the line, where a required cell is empty.
        """
        for name in required:
            empty = rows[name] == (UNKNOWN if rows.dtype[name].itemsize == 8 else -1)
            if empty.any():
                line = self._row_first + int(np.flatnonzero(empty)[0]) + 2
                raise RankmemError(
                    Code.INVALID,
                    f"{self._path}, line {line}: the {name.removesuffix('_ns')} is empty",
                    "the file is damaged: export or copy it again",
                )
        return rows

    def _coded(self, name: str, code: Callable[[str], int], absent: int) -> Array:
        cells = self._cells[name]
        codes = np.array([code(text) for text in cells.dictionary.to_pylist()] + [absent], np.int64)
        null = _is_null(cells)
        places = np.where(null, -1, cells.indices.fill_null(0).to_numpy(zero_copy_only=False))
        return codes[places]

    def _stream(self, text: str) -> int:
        if not text.strip():
            return UNKNOWN
        try:
            return int(np.int64(int(text, 0)))
        except (ValueError, OverflowError):
            raise self._refusal("Stream Ptr", f"holds {text[:40]!r}") from None

    def _refusal(self, name: str, why: str) -> RankmemError:
        return RankmemError(
            Code.INVALID,
            f"{self._path}, after line {self._row_first + 1}: {name} {why}",
            "the file is damaged or of another kind: export or copy it again",
        )


def _pieces(path: Path) -> Iterator[_Piece]:
    """The rows of a file, some at a time."""
    row = 0
    header: list[str] = []
    try:
        header = header_of(path)
        if not ends_in_line_break(path):
            raise RankmemError(
                Code.INVALID,
                f"{path} does not end in a line break: its last row may be cut short",
                "copy or export it again; if it is whole, add a line break at its end",
            )
        with open_bytes(path) as stream:
            reader = pacsv.open_csv(
                stream,
                read_options=pacsv.ReadOptions(block_size=PIECE_BYTES, use_threads=False),
                convert_options=_conversion(path),
            )
            for batch in reader:
                yield _Piece(path, row, batch)
                row += batch.num_rows
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError, *BROKEN) as error:
        raise RankmemError(
            Code.INVALID,
            f"{path}, {in_words(error, header, row + 1)}",
            "the file is cut short, damaged or of another kind: export or copy it again",
        ) from error


def _conversion(path: Path) -> pacsv.ConvertOptions:
    """Every column by its name; what is not known stays text."""
    header = header_of(path)
    types: dict[str, pa.DataType] = {}
    for name in header:
        plain = name.strip()
        if plain.endswith("(us)"):
            types[name] = _MICROSECONDS
        elif plain.endswith(("(MB)", "(KB)")):
            types[name] = pa.float64()
        elif plain.startswith("Node Index"):
            types[name] = pa.int64()
        else:
            types[name] = _NAME
    return pacsv.ConvertOptions(
        column_types=types,
        null_values=list(_EMPTY),
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )


def header_of(path: Path) -> list[str]:
    """The names of the columns."""
    with open_bytes(path) as stream:
        line = stream.readline(PIECE_BYTES).decode("utf-8-sig", errors="replace")
    return names_in(line)


def _is_null(cells: pa.Array) -> Array:
    nulls: Array = cells.is_null().to_numpy(zero_copy_only=False)
    return nulls
