"""Storages that are made past torch's registered CPU allocator: c10's default allocator asked by name, and
mapped files and shared memory. torch.profiler reports them, so it is the witness."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmem_agent.spool.layout import Action, Kind
from recorded_models import paired_rows
from storage_scripts import DIRECT, MAPPED, STEPS
from tap_kineto import compare, profiled
from tap_process import Recording, alive_after, asking_in_vain, record_process

MIB = 2**20


def _equal(body: str, folder: Path, before: str = "") -> Recording:
    recording = record_process(before + profiled(body), folder, is_forked=True)
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
    _equal(DIRECT + STEPS + MAPPED.format(strategy="file_descriptor"), tmp_path)


def test_kept_state_dicts_are_in_the_peak_and_alive_with_the_line_that_copied_them(tmp_path: Path) -> None:
    script = """
import copy
tap.enable(ALL)
model = torch.nn.Linear(1024, 1024, bias=False)
kept = [copy.deepcopy(model.state_dict()) for _ in range(32)]
tap.close()
"""
    recording = record_process(script, tmp_path, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    rows = {table: found.to_pylist() for table, found in paired_rows(recording).items()}
    assert max(event["requested_bytes"] for event in rows["memory_event"]) >= (4 + 128) * MIB
    copies = [r for r in rows["allocation_record"] if r["size_bytes"] == 4 * MIB and r["call_id"] is None]
    assert len(copies) == 32
    assert all(row["freed_ns"] is None and row["operator"] is None for row in copies)
    frames = {(f["stack_id"], f["file_path"].endswith("script.py")) for f in rows["stack_frame"]}
    assert all((row["stack_id"], True) in frames for row in copies)


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
    recording = record_process(script, tmp_path, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    events = recording.of(Kind.EVENT)
    assert (events["b"] == 8192).sum() == 4 * 400
    assert alive_after(events) == set()


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


def test_a_storage_that_cannot_be_had_is_an_oom_event_with_its_line_and_the_same_exception(
    tmp_path: Path,
) -> None:
    recording = record_process(asking_in_vain("torch.UntypedStorage(1 << 60)"), tmp_path)
    assert recording.returncode == 0, recording.stderr
    (oom,) = (event for event in recording.of(Kind.EVENT) if event["action"] == Action.OOM)
    assert (oom["b"], oom["call_id"]) == (1 << 60, 0)
    assert recording.reader.strings.stack(int(oom["e"]))[0].function == "ask"
