"""Every kind of export is the same from a running aggregator as from the file, within its limits."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import ipc

from export_logs import database, marker, training
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.exports import table_rows
from rankmem_aggregator.exports.exporting import MANIFEST, export
from rankmem_aggregator.exports.kinds import KINDS
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.server import aggregator as server
from repetitions import long_but

KINDS_OF_BYTES = sorted(set(KINDS) - {"duckdb"})
"""A copy of a database is not the same bytes twice; test_aggregator_query.py has it."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jobs = [training(0), training(1, host_uid="host-1", offset_ns=9_000)]
    return database(tmp_path_factory.mktemp("exported") / "r.duckdb", jobs, marker=[marker("epoch", 2, 9)])


@pytest.fixture(scope="module")
def aggregators(path: Path) -> Iterator[dict[bool, server.Aggregator]]:
    """One that gives 12 rows at a time, fewer than a rank has events; and one as they are."""
    shutil.copy(path, path.with_name("narrow.duckdb"))
    shutil.copy(path, path.with_name("read.duckdb"))
    narrow = AggregatorConfig(
        database_path=path.with_name("narrow.duckdb"), listen="127.0.0.1:0", query_row_limit=12
    )
    with (
        server.open(narrow) as first,
        server.open(AggregatorConfig(database_path=path, listen="127.0.0.1:0")) as second,
    ):
        yield {True: first, False: second}


ANSWERS = '<script type="application/json" id="answers">'


def content(path: Path) -> dict[str, bytes]:
    """Every file below, without what says when it was written."""
    if path.is_file():
        return _of_page(path) if path.name == "html" else {"": path.read_bytes()}
    found = {str(one.relative_to(path)): _bytes(one) for one in sorted(path.rglob("*")) if one.is_file()}
    manifest = json.loads(found.pop(MANIFEST))
    return found | {MANIFEST: json.dumps({**manifest, "written": ""}).encode()}


def _of_page(path: Path) -> dict[str, bytes]:
    """The page's own modules, what it says of itself, and the rows and facts of each answer that it holds."""
    text = path.read_text("utf-8")
    begin, rest = text.split(ANSWERS, 1)
    kept, end = rest.split("</script>", 1)
    told = json.loads(kept)
    answers = told.pop("answers")
    found = {"modules": (begin + end).encode(), "told": json.dumps({**told, "written": ""}).encode()}
    for question, packed in answers.items():
        with ipc.open_stream(gzip.decompress(base64.b64decode(packed))) as stream:
            answer = stream.read_all()
        found[question] = repr((answer.schema.metadata, answer.to_pylist())).encode()
    assert len(found) > 10
    return found


def _bytes(path: Path) -> bytes:
    """Of Arrow the rows: their batches are those that came."""
    if path.suffix != ".arrow":
        return path.read_bytes()
    with ipc.open_file(path) as file:
        return repr(file.read_all().to_pylist()).encode()


@pytest.mark.parametrize("kind", long_but(KINDS_OF_BYTES, *sorted({*KINDS_OF_BYTES} - {"html"})))
def test_an_export_of_an_aggregator_is_that_of_its_file(
    kind: str,
    aggregators: dict[bool, server.Aggregator],
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").mkdir()
    with connect(path.with_name("read.duckdb")) as queries:
        export(queries, kind, tmp_path / "file" / kind)
    monkeypatch.setattr(table_rows, "PAGE_ROWS", 3)
    with connect(aggregators[kind != "html"].address) as queries:
        assert isinstance(queries, RemoteQueries)
        export(queries, kind, tmp_path / kind)
    assert content(tmp_path / kind) == content(tmp_path / "file" / kind)
