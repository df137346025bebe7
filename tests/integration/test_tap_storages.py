"""Storages that are made past torch's registered CPU allocator: c10's default allocator asked by name, and
mapped files and shared memory. torch.profiler reports them, so it is the witness."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.spool.layout import Action, Kind
from tap_kineto import compare, profiled
from tap_process import Recording, record_process

MIB = 2**20

DIRECT = """
import copy, pickle
kept = [torch.UntypedStorage(1000), torch.ones(300).untyped_storage().clone()]
kept.append(torch.FloatStorage(77))
kept.append(torch.storage.TypedStorage(55, dtype=torch.float64))
plain = torch.arange(500.0)
kept.append(copy.deepcopy(plain))
model = torch.nn.Linear(31, 17)
kept.append(copy.deepcopy(model.state_dict()))
kept.append(copy.deepcopy(model))
kept.append(pickle.loads(pickle.dumps(plain)))
del kept[1], kept[0]
grown = torch.UntypedStorage(64)
grown.resize_(4096)
grown.resize_(0)
del grown, kept
model(torch.ones(3, 31)).sum().backward()
"""

MAPPED = """
import io
torch.multiprocessing.set_sharing_strategy("{strategy}")
shared = torch.ones(1000).share_memory_()
model = torch.nn.Linear(50, 40).share_memory()
del model
again = torch.zeros(3000).share_memory_()
empty = torch.ones(0).share_memory_()
del shared
queue = torch.multiprocessing.get_context("fork").SimpleQueue()
queue.put(again)
received = queue.get()
del again, received
mapped = torch.UntypedStorage.from_file(str(folder.parent / "numbers"), shared=True, nbytes=8192)
torch.save(dict(weight=torch.ones(5000)), folder.parent / "saved.pt")
loaded = torch.load(folder.parent / "saved.pt", mmap=True, weights_only=True)
total = loaded["weight"].sum()
del mapped, loaded, total
made = torch.UntypedStorage._new_shared(999)
del made
"""


def _equal(body: str, folder: Path, before: str = "") -> Recording:
    recording = record_process(before + profiled(body), folder)
    assert recording.returncode == 0, recording.stderr
    compared = compare(recording, folder / "trace.json")
    assert compared.difference() == ""
    assert len(compared.ours) > 20
    return recording


def test_storages_made_directly_and_deep_copies_equal_kinetos_events_one_by_one(tmp_path: Path) -> None:
    _equal(DIRECT, tmp_path)


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_mapped_files_and_shared_memory_equal_kinetos_events_one_by_one(
    strategy: str, tmp_path: Path
) -> None:
    _equal(MAPPED.format(strategy=strategy), tmp_path)


def test_storages_of_all_kinds_mixed_with_training_equal_kinetos_events_one_by_one(tmp_path: Path) -> None:
    steps = """
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.ones(3, 31)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept = [copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())]
    """
    _equal(DIRECT + textwrap.dedent(steps) + MAPPED.format(strategy="file_descriptor"), tmp_path)


def test_kept_state_dicts_are_alive_with_the_line_that_copied_them(tmp_path: Path) -> None:
    script = """
import copy
tap.enable(ALL)
model = torch.nn.Linear(1024, 1024, bias=False)
kept = [copy.deepcopy(model.state_dict()) for _ in range(32)]
tap.close()
"""
    recording = record_process(script, tmp_path)
    assert recording.returncode == 0, recording.stderr
    copies = [e for e in _alive(recording).values() if e["b"] == 4 * MIB and e["call_id"] == 0]
    assert len(copies) == 32
    for event in copies:
        stack = recording.reader.strings.stack(int(event["e"]))
        assert any(frame[0].endswith("script.py") for frame in stack), stack


def test_an_address_that_is_mapped_again_is_freed_first_also_among_threads(tmp_path: Path) -> None:
    script = """
tap.enable(What.CPU_EVENTS)
barrier = threading.Barrier(4)
def work():
    barrier.wait()
    for _ in range(400):
        torch.UntypedStorage._new_shared(8192)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
tap.close()
"""
    recording = record_process(script, tmp_path)
    assert recording.returncode == 0, recording.stderr
    events = recording.of(Kind.EVENT)
    assert (events["b"] == 8192).sum() == 4 * 400
    live: set[int] = set()
    for event in events:
        if event["action"] == Action.ALLOC:
            assert int(event["a"]) not in live
            live.add(int(event["a"]))
        else:
            live.remove(int(event["a"]))
    assert live == set()


def test_a_forked_child_maps_and_unmaps_while_a_thread_of_its_parent_does(tmp_path: Path) -> None:
    script = """
tap.enable(ALL)
inherited = torch.ones(1000).share_memory_()
running = True
def work():
    while running:
        torch.UntypedStorage._new_shared(4096)
thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        del inherited
        torch.UntypedStorage._new_shared(12345)
        torch.UntypedStorage(12345)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
running = False
thread.join()
tap.close()
print(inherited.sum().item())
"""
    recording = record_process(script, tmp_path)
    assert (recording.returncode, recording.stdout) == (0, "1000.0\n"), recording.stderr
    events = recording.of(Kind.EVENT)
    assert (events["b"] == 12345).sum() == 0
    assert (events["b"] == 4096).sum() > 0


def test_storages_that_outlive_the_recording_are_freed_at_exit_without_harm(tmp_path: Path) -> None:
    script = """
import atexit, builtins
tap.enable(ALL)
builtins.kept = [torch.UntypedStorage(1 << 20), torch.ones(1000).share_memory_()]
atexit.register(lambda: print("left", len(builtins.kept)))
atexit.register(tap.close)
atexit.register(tap.stop_stacks)
torch.UntypedStorage(77)
"""
    recording = record_process(script, tmp_path)
    assert (recording.returncode, recording.stdout, recording.stderr) == (0, "left 2\n", "")
    assert recording.gaps == []
    assert len(recording.of(Kind.END)) == 1


def _alive(recording: Recording) -> dict[int, Any]:
    """The last ALLOC event of each block that was never freed."""
    alive: dict[int, Any] = {}
    for event in recording.of(Kind.EVENT):
        if event["action"] == Action.ALLOC:
            alive[int(event["a"])] = event
        else:
            alive.pop(int(event["a"]), None)
    return alive
