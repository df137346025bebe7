"""Chrome traces read piece by piece: the same events wherever a chunk ends, a place where they break off."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rankmem_imports.files import json_events
from rankmem_imports.files.json_events import JsonEvents
from rankmem_imports.kineto.scan import time_ns
from rankmem_protos.errors import RankmemError

TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": 'a "quoted" } name'}],
    "traceEvents": [
        {"ph": "X", "name": "aten::mm", "ts": 12.5, "args": {"s": 'brackets ]}{[ and "quotes" \\'}},
        {"ph": "i", "name": "[memory]", "ts": 1419247332972313, "args": {"Bytes": -512}},
        {"ph": "M", "name": "ünï\u2028cödé", "args": {}},
    ],
    "baseTimeNanoseconds": 1751410836000000000,
}


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.json"
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    trace = JsonEvents(path)
    return list(trace.events()), trace.fields


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 4096])
@pytest.mark.parametrize("indent", [None, 2])
def test_events_are_the_same_wherever_a_chunk_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    monkeypatch.setattr(json_events, "CHUNK_CHARS", chunk)
    text = json.dumps(TRACE, indent=indent, ensure_ascii=False)
    expected = json.loads(text, parse_float=str)
    events, fields = read(written(tmp_path, text))
    assert events == expected.pop("traceEvents")
    assert fields == expected


def test_a_list_of_events_needs_no_closing_bracket(tmp_path: Path) -> None:
    text = json.dumps(TRACE["traceEvents"])
    assert read(written(tmp_path, text))[0] == read(written(tmp_path, text[:-1]))[0]


def test_gzip_is_told_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "no-name-says-so"
    path.write_bytes(gzip.compress(json.dumps(TRACE).encode()))
    assert len(read(path)[0]) == 3


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_breaks_off_is_refused_with_the_place(
    tmp_path: Path, share: float, packed: bool
) -> None:
    raw = json.dumps(TRACE).encode()
    whole = gzip.compress(raw) if packed else raw
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(RankmemError, match=r"cut\.json .* after character \d+"):
        read(path)


def test_the_place_of_a_break_is_within_the_file(tmp_path: Path) -> None:
    text = json.dumps(TRACE)[:-9]
    with pytest.raises(RankmemError, match="it breaks off") as refused:
        read(written(tmp_path, text))
    places = [int(place) for place in re.findall(r"character (\d+)", refused.value.message)]
    assert places
    assert max(places) <= len(text)


def test_a_second_document_is_refused_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    text = json.dumps(TRACE)
    with pytest.raises(RankmemError, match="something follows its end"):
        read(written(tmp_path, text + "\n" + text))
    assert read(written(tmp_path, "\ufeff" + text + " \n")) == read(written(tmp_path, text))


@pytest.mark.parametrize(
    "text", ["", "nonsense", "{1: 2}", '{"a" 1}', '{"traceEvents": [{"a": }]}', '{"a": ' + "[" * 100_000]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RankmemError, match="not a complete trace"):
        read(written(tmp_path, text))


def test_a_value_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "CHUNK_CHARS", 100)
    monkeypatch.setattr(json_events, "VALUE_CHARS_MAX", 1000)
    text = '{"traceEvents": [{"name": "' + "x" * 5000 + '"}]}'
    with pytest.raises(RankmemError, match="longer than 1000 characters"):
        read(written(tmp_path, text))


def test_times_keep_their_nanoseconds() -> None:
    assert time_ns("1719338812345678.123") == 1_719_338_812_345_678_123
    assert time_ns("0.5") == 500
    assert time_ns("-1.25") == -1250
    assert time_ns("1.5e3") == 1_500_000
    assert time_ns(7) == 7000
