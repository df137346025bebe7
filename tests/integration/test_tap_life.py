"""The tap through a process's life: threads, a full budget, fork, kill, out of memory, late frees."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from rankmem_agent.spool.layout import RECORDS_PER_SEGMENT, SEGMENT_BYTES, Action, Kind, State
from tap_process import BUDGET_BYTES, PRELUDE, alive_after, asking_in_vain, record_process


def test_no_record_is_lost_when_eight_threads_allocate_at_once(tmp_path: Path) -> None:
    script = """
tap.enable(What.CPU_EVENTS)
barrier = threading.Barrier(8)
def work():
    barrier.wait()
    for size in range(1, 2001):
        torch.empty(size)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
tap.close()
"""
    recording = record_process(script, tmp_path)
    assert recording.returncode == 0, recording.stderr
    assert recording.gaps == []
    assert recording.seq.tolist() == list(range(len(recording.seq)))
    events = recording.of(Kind.EVENT)
    assert len(events) == 8 * 2000 * 2
    assert len(set(events["thread"].tolist())) == 8
    for thread in set(events["thread"].tolist()):
        own = events[events["thread"] == thread]
        assert own["b"][own["action"] == Action.ALLOC].tolist() == [4 * size for size in range(1, 2001)]
        assert (np.diff(own["time_ns"].astype(np.int64)) >= 0).all()
    assert alive_after(events) == set()


def test_a_full_budget_costs_whole_segments_and_recording_resumes_after_deletion(tmp_path: Path) -> None:
    script = """
import time
def fill(upto):
    while tap.stat(Stat.NEXT_SEQ) < upto:
        torch.empty(10)
def settle(segments):
    for _ in range(2000):
        if tap.stat(Stat.SEGMENTS_READY) >= segments: return
        time.sleep(0.005)
    raise SystemExit("no segment was made ready")
tap.enable(What.CPU_EVENTS)
fill(65536 - 2000); settle(2)
fill(3 * 65536 + 100)
assert tap.stat(Stat.DROPPED) > 0, "nothing was dropped"
(folder / "segment-00000000").rename(folder.parent / "segment-00000000")
(folder / "segment-00000001").rename(folder.parent / "segment-00000001")
settle(3)
fill(5 * 65536)
tap.close()
for number in (0, 1):
    (folder.parent / f"segment-{number:08d}").rename(folder / f"segment-{number:08d}")
"""
    recording = record_process(script, tmp_path, budget_bytes=2 * SEGMENT_BYTES)
    assert recording.returncode == 0, recording.stderr
    first, last = RECORDS_PER_SEGMENT * 2, RECORDS_PER_SEGMENT * 4 - 1
    lost = [gap for gap in recording.gaps if gap.sequence_first < 4 * RECORDS_PER_SEGMENT]
    assert lost[0].sequence_first == first
    assert lost[-1].sequence_last == last
    assert {gap.why for gap in lost} == {"spool_full"}
    assert recording.seq[recording.seq > last].size >= RECORDS_PER_SEGMENT
    dropped = sum(gap.sequence_last - gap.sequence_first + 1 for gap in recording.gaps)
    assert recording.reader.control_value("dropped") == dropped


def test_a_forked_child_writes_nothing_and_frees_its_parents_blocks(tmp_path: Path) -> None:
    script = """
tap.enable(ALL)
inherited = torch.ones(1 << 16)
before = tap.stat(Stat.NEXT_SEQ)
child = os.fork()
if child == 0:
    del inherited
    own = [torch.ones(100).mul(2) for _ in range(100)]
    tap.record(Kind.STEP, step=99)
    assert tap.intern("only in the child") == 0
    del own
    tap.close()
    os._exit(0 if tap.stat(Stat.SPOOL_OPEN) == 0 else 3)
assert os.waitpid(child, 0)[1] == 0
torch.ones(5)
tap.close()
"""
    recording = record_process(script, tmp_path)
    assert recording.returncode == 0, recording.stderr
    steps = recording.of(Kind.STEP)
    assert len(steps) == 0
    assert len(recording.of(Kind.END)) == 1
    assert recording.gaps == []
    assert len(recording.calls_named("aten::mul")) == 0
    assert len(recording.calls_named("aten::ones")) == 2


def test_a_forked_child_publishes_nothing(tmp_path: Path) -> None:
    script = """
from rankmem_protos.errors import RankmemError
final = folder.parent / "final"
final.mkdir()
child = os.fork()
if child == 0:
    try:
        tap.publish(final)
    except RankmemError:
        os._exit(0)
    os._exit(3)
assert os.waitpid(child, 0)[1] == 0
tap.close()
"""
    recording = record_process(script, tmp_path)
    assert recording.returncode == 0, recording.stderr
    assert list((tmp_path / "final").iterdir()) == []
    assert len(recording.of(Kind.END)) == 1


def test_only_a_process_with_blocks_is_busy_and_what_a_handler_raises_is_the_programs(tmp_path: Path) -> None:
    script = """
import time
called = []
def callback():
    called.append(tap.stat(Stat.HAS_BLOCKS))
    raise TimeoutError  # a signal's handler ran in it
tap.enable(What.CPU_EVENTS)
tap.when_busy(callback, after_s=0.0, records=1)
for _ in range(30):  # clocks and samples alone, for as long as the tap looks ten times
    time.sleep(0.01)
assert tap.stat(Stat.NEXT_SEQ) > 1 and not called
kept = torch.ones(3)
try:
    for _ in range(6000):
        time.sleep(0.01)
except TimeoutError:
    print("interrupted", called)
tap.close()
"""
    recording = record_process(script, tmp_path)
    assert (recording.returncode, recording.stdout, recording.stderr) == (0, "interrupted [1]\n", "")


def test_what_is_raised_at_the_first_instruction_of_the_call_back_is_the_programs_too(tmp_path: Path) -> None:
    script = """
import sys, time
def interrupt(*_):
    raise TimeoutError
tap.enable(What.CPU_EVENTS)
kept = torch.ones(3)
tap.when_busy(lambda: print("called"), after_s=0.0, records=1)
sys.settrace(interrupt)  # at the first function that is entered, as a signal's handler may
try:
    for _ in range(6000):
        time.sleep(0.01)
except TimeoutError:
    print("interrupted")
tap.close()
"""
    recording = record_process(script, tmp_path)
    assert (recording.returncode, recording.stdout, recording.stderr) == (0, "interrupted\n", "")


def test_a_killed_process_leaves_every_record_up_to_the_kill(tmp_path: Path) -> None:
    script = """
import signal
tap.enable(ALL)
kept = [torch.ones(100) for _ in range(1000)]
os.kill(os.getpid(), signal.SIGKILL)
"""
    recording = record_process(script, tmp_path)
    assert recording.returncode == -signal.SIGKILL
    assert recording.gaps == []
    assert recording.reader.control_value("state") == State.RUNNING
    allocs = recording.of(Kind.EVENT)
    assert (allocs["b"] == 400).sum() == 1000
    assert len(recording.calls_named("aten::ones")) == 1000


def test_an_allocation_that_fails_is_an_oom_event_and_the_same_exception(tmp_path: Path) -> None:
    recording = record_process(asking_in_vain("torch.empty(1 << 60, dtype=torch.uint8)"), tmp_path)
    assert recording.returncode == 0, recording.stderr
    (oom,) = (event for event in recording.of(Kind.EVENT) if event["action"] == Action.OOM)
    assert oom["b"] == 1 << 60
    assert 0 < oom["d"] < 1 << 50
    (end,) = (end for end in recording.of(Kind.CALL_END) if end["call_id"] == oom["call_id"])
    assert recording.reader.strings.stack(int(end["e"]))[0].function == "ask"


def test_blocks_freed_after_close_and_at_exit_do_no_harm(tmp_path: Path) -> None:
    script = """
import atexit
tap.enable(ALL)
torch.kept_until_the_very_end = torch.ones(1 << 12)
enough = threading.Event()
def work():
    while not enough.is_set():
        torch.ones(10).mul(2)
worker = threading.Thread(target=work)
worker.start()
while tap.stat(Stat.STACKS_GATHERED) < 1000:
    torch.ones(3).sum()
def at_exit():
    tap.stop_stacks()
    tap.close()  # while the worker allocates
    torch.ones(10).sum()
    enough.set()
    worker.join()
threading._register_atexit(at_exit)
print("done")
"""
    recording = record_process(script, tmp_path)
    assert (recording.returncode, recording.stdout, recording.stderr) == (0, "done\n", "")
    assert len(recording.of(Kind.END)) == 1
    assert recording.reader.control_value("state") == State.ENDED


def test_the_first_record_is_a_clock_and_the_last_one_end(tmp_path: Path) -> None:
    recording = record_process("tap.enable(ALL); torch.ones(3); tap.close(); tap.close()", tmp_path)
    assert recording.records["kind"][0] == Kind.CLOCK
    assert recording.records["kind"][-1] == Kind.END
    clock = recording.records[0]
    assert abs(int(clock["a"]) - (tmp_path / "spool" / "control").stat().st_ctime_ns) < 60_000_000_000
    (sample, *_) = recording.of(Kind.SAMPLE)
    assert 10 << 20 < sample["a"] < sample["d"]
    assert sample["b"] + sample["c"] == sample["d"]


def test_a_second_spool_in_a_process_is_refused(tmp_path: Path) -> None:
    script = """
from rankmem_protos.errors import Code, RankmemError
for again in (lambda: tap.open(folder, 1 << 24), tap.attach_cpu, tap.attach_calls):
    try:
        again()
    except RankmemError as error:
        print(error.code.value)
try:
    tap.attach_cuda()
except RankmemError as error:
    print(error.code.value)
"""
    recording = record_process(script, tmp_path)
    assert recording.stdout.split() == ["conflict", "conflict", "conflict", "unsupported"], recording.stderr


def test_files_of_the_spool_are_the_users_alone(tmp_path: Path) -> None:
    record_process("tap.close()", tmp_path)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "spool").iterdir()}
    del modes["meta.json"]  # the test's own
    assert len(modes) >= 3
    assert set(modes.values()) == {0o600}


def test_a_process_holds_its_lock_until_it_is_killed_and_no_child_of_it_longer(tmp_path: Path) -> None:
    script = """
import signal, time
from rankmem_agent.spool import life
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    for _ in range(1000):  # another thread of the dead may let go of its files a moment later
        if not life.is_held(folder): break
        time.sleep(0.01)
    print("orphaned:", life.is_held(folder), flush=True)
    os._exit(0)
tap.enable(ALL)
kept = torch.ones(100)
print("alive:", life.is_held(folder), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    recording = record_process(script, tmp_path)
    assert recording.returncode == -signal.SIGKILL
    assert recording.stdout.splitlines() == ["alive: True", "orphaned: False"]


def test_no_file_of_ours_is_where_a_program_has_its_input_or_its_errors(tmp_path: Path) -> None:
    """Both closed, as a daemon's are: what a library writes to stderr would go into the file of strings.

    Nor under any number that a file of the program's would get.
    """
    script = """
held = torch.ones(100)
names = {int(fd): os.path.basename(os.readlink(f"/proc/self/fd/{fd}")) for fd in os.listdir("/proc/self/fd")
         if os.path.lexists(f"/proc/self/fd/{fd}")}
print(sorted(fd > 500 for fd, name in names.items() if name in ("strings", "control")))
tap.close()
"""
    closed = "import os; os.close(0); os.close(2)\n"
    (tmp_path / "spool").mkdir()
    command = (sys.executable, "-c", closed + PRELUDE + script, str(tmp_path / "spool"), str(BUDGET_BYTES))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[True, True]"]


def test_a_program_that_closes_all_descriptors_keeps_the_files_that_it_opens_then(tmp_path: Path) -> None:
    """As a daemon does at its start; also where our numbers are given to some of them."""
    script = """
import time
from rankmem_agent.spool import life
tap.enable(ALL)
torch.ones(100)
known = tap.stat(Stat.STRINGS_DROPPED)
time.sleep(0.3)  # until the native thread has its segments: it may mistake a file just as it makes one
links = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
         if os.path.lexists(f"/proc/self/fd/{fd}")}
ours = [fd for fd, link in links.items() if os.path.basename(link) in ("strings", "control")]
os.closerange(3, 4096)
own = [open(folder.parent / f"own-{number}", "wb+") for number in range(32)]
for file, number in zip(own, ours, strict=False): os.dup2(file.fileno(), number)
torch.ones(100).cumsum(0)
tap.intern("a new name")
print("dropped:", tap.stat(Stat.STRINGS_DROPPED) > known, flush=True)
print("written to:", [file.name for file in own if os.fstat(file.fileno()).st_size], flush=True)
if os.fork() == 0:
    numbers = [*ours, *(file.fileno() for file in own)]
    print("closed:", [number for number in numbers if not os.path.lexists(f"/proc/self/fd/{number}")])
    sys.stdout.flush()
    os._exit(0)
os.wait()
for _ in range(1000):
    if life.is_held(folder): break
    time.sleep(0.01)
print("held again:", life.is_held(folder))
tap.close()
"""
    recording = record_process(script, tmp_path)
    assert recording.stdout.splitlines() == [
        "dropped: True",
        "written to: []",
        "closed: []",
        "held again: True",
    ]
