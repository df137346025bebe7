"""Allocators of others for CPU, before and after the tap attaches: what they hand out is counted once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from rankmem_agent.spool.layout import Action, Kind
from repetitions import long_but
from tap_process import PRELUDE, Recording, record_process

TORCH = Path(torch.__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

BLOCKS = """
tap.enable(ALL)
tensors = [torch.empty(size, dtype=torch.uint8) for size in (3001, 3002, 3003)]
storages = [torch.UntypedStorage(size) for size in (4001, 4002)]
grown = torch.empty(5001, dtype=torch.uint8).resize_(5002)
del tensors, storages, grown
print(int(tap.cpu_sees()))
tap.close()
"""
SIZES = [3001, 3002, 3003, 4001, 4002, 5001, 5002]


@pytest.fixture(scope="module")
def allocators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The allocators as a library."""
    library = tmp_path_factory.mktemp("cpu_allocators") / "allocators.so"
    source = Path(__file__).parent / "cpu_allocators" / "allocators.cpp"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", f"-isystem{TORCH / 'include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = ["g++", *flags, abi, str(source), "-o", str(library), str(TORCH / "lib" / "libc10.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return library


def _record(folder: Path, library: Path, *, before: str = "", after: str = "") -> Recording:
    """BLOCKS with a call of the library before or after the tap attaches."""
    load = f"import ctypes; library = ctypes.CDLL({str(library)!r})"
    head = PRELUDE.replace("tap.attach_cpu()", f"{load}\n{before}\ntap.attach_cpu()\n{after}")
    recording = record_process(BLOCKS, folder, prelude=head)
    assert recording.returncode == 0, recording.stderr
    return recording


def _sizes(recording: Recording) -> list[int]:
    """Sizes of the blocks got, in order, each of which was given back once."""
    live: dict[int, int] = {}
    sizes = []
    for event in recording.of(Kind.EVENT):
        address = int(event["a"])
        if event["action"] == Action.ALLOC:
            assert address not in live
            live[address] = int(event["b"])
            sizes.append(int(event["b"]))
        elif int(event["a"]) in live:
            del live[address]
        else:
            raise AssertionError("a free of a block never seen")
    assert live == {}
    return sizes


@pytest.mark.parametrize("name", long_but(["delegating", "wrapping", "apart"], "delegating", "apart"))
def test_blocks_of_an_allocator_registered_before_are_counted_once(
    name: str, allocators: Path, tmp_path: Path
) -> None:
    recording = _record(tmp_path, allocators, before=f'library.install(b"{name}", 3)')
    assert _sizes(recording) == SIZES
    assert recording.stdout.split() == ["7"]


def test_an_allocator_registered_later_is_obeyed_and_what_it_asks_of_the_default_one_is_seen(
    allocators: Path, tmp_path: Path
) -> None:
    recording = _record(tmp_path, allocators, after='library.install(b"wrapping", 0)')
    extra = [size if size in (4001, 4002) else size + 64 for size in SIZES]
    assert _sizes(recording) == extra


def test_a_default_allocator_that_is_not_as_expected_is_left_alone_and_that_is_reported(
    allocators: Path, tmp_path: Path
) -> None:
    recording = _record(tmp_path, allocators, before="library.disguise_default()")
    assert _sizes(recording) == [size for size in SIZES if size not in (4001, 4002)]
    assert recording.stdout.split() == ["5"]


def test_the_raw_interface_of_the_default_allocator_works_and_is_recorded(
    allocators: Path, tmp_path: Path
) -> None:
    recording = _record(
        tmp_path, allocators, after="tap.enable(What.CPU_EVENTS)\nassert library.raw_round() == 1"
    )
    assert _sizes(recording) == [777, 5, *SIZES]


def test_detail_auto_records_all_where_the_sizes_of_anothers_blocks_are_not_known(
    allocators: Path, tmp_path: Path
) -> None:
    made = 'library.install(b"apart", 3)'
    is_chosen = "tap.enable(What.HEIGHTS)\nprint(tap.stat(Stat.CHOOSES_DETAIL))"
    recording = _record(tmp_path, allocators, before=made, after=is_chosen)
    assert recording.stdout.split() == ["0", "7"]
    assert _sizes(recording) == SIZES
