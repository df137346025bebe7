"""Whether the blocks of a step come as in a step before, said by the real tap in real processes."""

from __future__ import annotations

from pathlib import Path

from rankmem_agent.spool.layout import UNKNOWN, Course, Kind
from rankmem_ship.parts import Likeness, parts_of, twins_of
from rankmem_ship.spool_reader.segments import named
from tap_process import PRELUDE, Recording, record_process

BUDGET_BYTES = 256 << 20
COMPARING = (
    PRELUDE.replace("build_tap()", "build_tap(with_evidence=True)")
    + """
from torch import nn
from rankmem_agent.hooks.module_frames import follow
assert follow(tap, lambda *modules: None)
ALL |= What.EVIDENCE
layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
x = torch.ones(4, 8)
def train(which, backwards=1):
    for _ in range(backwards):
        loss = layers[which](x).sum()
        loss.backward()
        for p in layers[which].parameters(): p.grad = None
def steps(plan, before={}):  # called once: what calls a step is a part of what its blocks show
    for number, args in enumerate(plan):
        before.get(number, lambda: None)()
        train(*args)
        tap.set_step(number + 1)
tap.enable(ALL)
"""
)


def recorded(script: str, folder: Path) -> Recording:
    recording = record_process(
        script + "\ntap.close()", folder, budget_bytes=BUDGET_BYTES, prelude=COMPARING, is_forked=True
    )
    assert recording.returncode == 0, recording.stderr
    assert not recording.gaps
    return recording


def like_steps(recording: Recording, thread: int | None = None) -> list[int | None]:
    """Of each part in turn; of the thread that has most, unless one is named."""
    parts = list(parts_of(recording.records))
    threads = [part.thread for part in parts]
    wanted = thread or max(threads, key=threads.count)
    return [part.like_step for part in parts if part.thread == wanted]


def test_a_step_is_like_the_first_of_its_kind_and_another_layer_is_another_kind(tmp_path: Path) -> None:
    recording = recorded("steps([(which,) for which in (0, 0, 1, 0, 1, 1)])", tmp_path)
    assert like_steps(recording) == [0, 0, 2, 0, 2, 2]
    twins = twins_of(recording.records)
    assert set(twins["likeness"].tolist()) <= {Likeness.WHOLE, Likeness.BEGINNING}


def test_a_longer_step_is_like_the_beginning_of_none_that_it_outgrows(tmp_path: Path) -> None:
    recording = recorded("steps([(0, n) for n in (1, 3, 1, 3, 2, 2)])", tmp_path)
    assert like_steps(recording) == [0, 1, 0, 1, 4, 4]
    courses = [(int(part["course"]), int(part["step"])) for part in named(recording.of(Kind.PART), Kind.PART)]
    assert (Course.DIFFERS, 1) in courses
    assert (Course.DIFFERS, 4) not in courses  # it is the beginning of step 1, and ends early


def test_what_is_learned_does_not_outlive_what_it_rests_on(tmp_path: Path) -> None:
    recording = recorded(
        """
module = id(layers[0])
def name(text): tap.name_module(module, tap.intern(text), may_change=False)
def stop_for_a_moment():
    tap.enable(What.CALLS, False)
    tap.enable(What.CALLS)
steps([(0,)] * 18, {
    3: lambda: name("a"),
    6: lambda: name("another"),
    9: stop_for_a_moment,
    12: lambda: tap.forget_module(module),
    14: lambda: name("another"),  # as before
    16: lambda: (tap.forget_module(module), name("a third")),
})
""",
        tmp_path,
    )
    assert like_steps(recording) == [0, 0, 0, 0, 0, 0, 6, 6, 6, 9, 9, 9, 9, 9, 9, 9, 16, 16]


def test_a_part_in_which_what_it_rests_on_changed_is_not_kept(tmp_path: Path) -> None:
    recording = recorded(
        """
in_a_step, forward = iter(range(9)), layers[0].forward
def looked_at(x):
    x = x + 1
    if next(in_a_step) == 2:
        tap.enable(What.CALLS, False)
        tap.enable(What.CALLS)
    return forward(x)
layers[0].forward = looked_at
steps([(0,)] * 5)
""",
        tmp_path,
    )
    assert like_steps(recording) == [0, 0, None, 3, 3]


def test_more_kinds_of_steps_than_are_kept_are_learned_again(tmp_path: Path) -> None:
    recording = recorded(
        """
kinds = [*range(40), *range(40), *range(80), 4, 4]
steps([(0, 1 + kind) for kind in kinds])
""",
        tmp_path,
    )
    found = like_steps(recording)
    assert found[:80] == [*range(40), *range(40)]
    assert found[80:120] == [*range(40)]
    assert found[120:160] == [*range(120, 160)]
    assert found[160] == found[161] == 160


def test_a_step_of_more_blocks_than_are_kept_is_like_none_and_later_ones_are_compared_again(
    tmp_path: Path,
) -> None:
    recording = recorded(
        """
tap.enable(What.CALLS | What.STACKS, False)
def allocate():
    for _ in range(530_000): torch.empty(1)
steps([(0,)] * 6, {2: allocate, 3: allocate})
""",
        tmp_path,
    )
    assert like_steps(recording) == [0, 0, None, None, 0, 0]


def test_threads_have_parts_of_their_own_and_rooms_are_given_back(tmp_path: Path) -> None:
    recording = recorded(
        """
def at_once(count):
    gate, done = threading.Barrier(count + 1), threading.Barrier(count + 1)
    def work():
        for _ in range(2):
            gate.wait()
            torch.empty(3), torch.empty(5)
            done.wait()
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads: thread.start()
    for _ in range(2):
        gate.wait()
        done.wait()
        global number
        number += 1
        tap.set_step(number)
    for thread in threads: thread.join()
number = 0
at_once(80)
at_once(60)
""",
        tmp_path,
    )
    parts = list(parts_of(recording.records))
    threads = {part.thread for part in parts}
    ended = [part for part in parts if part.like_step is not None]
    assert len(threads) == 64 + 60  # of the first eighty not all have room
    assert all(len(part.blocks) == 2 for part in ended)


def test_a_block_of_which_nothing_is_known_spoils_its_part(tmp_path: Path) -> None:
    recording = recorded(
        """
def stop():
    tap.stop_stacks()
    torch.empty(6007)
steps([(0,)] * 2)
train(0)
stop()
""",
        tmp_path,
    )
    assert like_steps(recording) == [0, 0, None]
    last = named(recording.of(Kind.PART), Kind.PART)[-1]
    assert (last["course"], last["like_step"]) == (Course.ENDS, UNKNOWN)
