"""What is said where an object store fails: its file, in a line; and a commit of which no answer came."""

from __future__ import annotations

import dataclasses
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from rankmem_aggregator.lake import delta
from rankmem_aggregator.lake.catalog import add_progress, read_catalog
from rankmem_aggregator.lake.delta import commit_once, made_elsewhere
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.layout import DataFile
from rankmem_aggregator.lake.remote_files import RemoteFiles
from rankmem_aggregator.query.file_faults import file_error
from rankmem_protos.errors import Code, RankmemError

DATA_FILE = DataFile(
    table_name="session", session_id="0sess", segment=0, hosts=0, path="", size_bytes=1, num_rows=1,
    from_ns=None, until_ns=None, host_uids=None, writer="lane", sequence=1, state="stored", schema_version=14,
)  # fmt: skip
SAID = "Generic S3 error\n   \x1b[31m↳\x1b[0m Error performing GET\n      \x1b[31m↳\x1b[0m end of file\n"


class Opened(io.BytesIO):
    """A file of ten bytes of which a read gives two, or an error."""

    def __init__(self, error: OSError | None) -> None:
        super().__init__(b"0123456789")
        self.error = error

    def size(self) -> int:
        return 10

    def read(self, size: int | None = -1) -> bytes:
        if self.error is not None:
            raise self.error
        return super().read(min(2, size or 0))


class Store:
    """Opens that file, or fails."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened

    def open_input_file(self, name: str) -> Any:
        if isinstance(self.opened, OSError):
            raise self.opened
        return self.opened


def test_a_file_that_breaks_off_is_told_with_what_the_store_said_in_a_line() -> None:
    for store in (Store(Opened(OSError(SAID))), Store(OSError(SAID))):
        files = RemoteFiles("lake", "s3://bucket", store)
        files.sizes = {"a.parquet": 10}
        with pytest.raises(OSError, match="Generic S3 error") as failed:
            files.open("lake://a.parquet").read(5)
        check_fault(failed.value, "Generic S3 error: Error performing GET: end of file")


def check_fault(failed: OSError, why: str) -> None:
    """It is known again in the text that DuckDB makes of it."""
    error = file_error(f"Traceback (most recent call last):\n  x\nFileFault: {failed}\n\nLINE 1: SELECT")
    assert error is not None
    assert error.code is Code.UNAVAILABLE
    assert error.message == f"the lake's file s3://bucket/a.parquet cannot be read: {why}"


def test_a_read_that_gives_fewer_bytes_than_there_are_is_told_and_one_at_the_end_is_not() -> None:
    files = RemoteFiles("lake", "s3://bucket", Store(Opened(None)))
    files.sizes = {"a.parquet": 10}
    opened = files.open("lake://a.parquet")
    opened.seek(8)
    assert opened.read(5) == b"89"
    opened.seek(0)
    with pytest.raises(OSError, match="came of") as failed:
        opened.read(5)
    check_fault(failed.value, "2 bytes came of 5")


def test_each_thread_has_a_position_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"0123456789")
    files = RemoteFiles("lake", "s3://bucket", SubTreeFileSystem(str(tmp_path), LocalFileSystem()))
    files.sizes = {"a.parquet": 10}
    opened = files.open("lake://a.parquet")
    opened.seek(2)
    with ThreadPoolExecutor(1) as other:
        other.submit(lambda: opened.seek(7)).result()
        assert opened.read(2) == b"23"
        assert other.submit(lambda: opened.read(2)).result() == b"78"
    opened.close()
    with pytest.raises(ValueError, match="closed"):
        opened.read(1)


@pytest.mark.parametrize(
    ("size", "what"), [(10, "has 10 bytes, not 11: it is torn, or another file"), (None, "is missing")]
)
def test_a_file_of_another_size_is_not_opened(size: int | None, what: str) -> None:
    files = RemoteFiles("lake", "s3://bucket", Store(Opened(None) if size else FileNotFoundError("a")))
    files.sizes = {"a.parquet": 11}
    with pytest.raises(OSError, match="lake's file") as failed:
        files.open("lake://a.parquet")
    error = file_error(str(failed.value))
    assert error is not None
    assert (error.code, error.message) == (Code.INVALID, f"the lake's file s3://bucket/a.parquet {what}")


@pytest.mark.parametrize(
    "trace", ["\x1b[1;31mstack backtrace\x1b[0m:\n  0: main\n", "   0: <unknown>\n  at x\n"]
)
def test_of_what_deltalake_says_the_trace_that_follows_is_left_out(trace: str) -> None:
    error = DeltaError(f"Kernel error: no room\n\n{trace}")

    def attempt() -> None:
        raise error

    with pytest.raises(RankmemError) as refused:
        commit_once("here", attempt)
    assert refused.value.message == "cannot write here: Kernel error: no room"


def test_files_whose_commit_has_no_answer_are_known_by_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "ATTEMPT_WAIT_S", 0)
    write, files = deltalake.write_deltalake, LakeFiles(str(tmp_path))
    ours, others = (
        dataclasses.replace(DATA_FILE, path=f"session/session_id=0sess/segment=0/hosts=0/{name}.parquet")
        for name in ("ours", "others")
    )

    def unanswered(*about: Any, **options: Any) -> None:
        write(*about, **options)
        raise CommitFailedError("the answer is lost")

    monkeypatch.setattr(deltalake, "write_deltalake", unanswered)
    add_progress(files, [ours], app="lane", sequence=1)
    assert [file.path for file in read_catalog(files).files] == [ours.path]
    with pytest.raises(RankmemError, match="another process"):
        add_progress(files, [others], app="lane", sequence=1)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_commit_that_is_there_after_a_lost_answer_is_this_one_or_anothers(
    is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "ATTEMPT_WAIT_S", 0)
    tried: list[int] = []

    def attempt() -> None:
        tried.append(1)
        raise CommitFailedError("it is there") if len(tried) == 1 else made_elsewhere("here")

    if is_own:
        commit_once("here", attempt, lambda: True)
    else:
        with pytest.raises(RankmemError, match="another process") as refused:
            commit_once("here", attempt)
        assert refused.value.code is Code.CONFLICT
    assert len(tried) == 2


def test_a_commit_that_was_there_before_is_not_taken_for_this_one() -> None:
    def attempt() -> None:
        raise made_elsewhere("here")

    with pytest.raises(RankmemError, match="another process"):
        commit_once("here", attempt, lambda: True)
