"""Which call an event belongs to, with which name, module, phase, step, forward call and Python stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmem_agent.spool.layout import NO_SEQUENCE, STACK_FRAMES_MAX, Action, Kind, Phase
from tap_process import Recording, record_process

SCRIPT = """
import ctypes
linear = torch.nn.Linear(8, 8)
x = torch.randn(4, 8)
tap.set_module(tap.intern("blocks.0.mlp"))
tap.set_phase(Phase.FORWARD)
tap.set_step(7)
tap.enable(ALL)
def users_function():
    return linear(x)
with torch.autograd.profiler.record_function("my range"):
    out = users_function()
loss = out.sum()
loss.backward()
view = out.detach().view(-1)
view = None
worker = threading.Thread(target=lambda: torch.ones(100).mul(2), name="worker")
worker.start(); worker.join()
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value): return value * 2
    @staticmethod
    def backward(ctx, gradient): return gradient * 2
Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
torch.library.define("rankmem_test::trains_inside", "(Tensor value) -> Tensor")
@torch.library.impl("rankmem_test::trains_inside", "CompositeImplicitAutograd")
def trains_inside(value):
    with torch.enable_grad():
        leaf = value.detach().requires_grad_()
        (slope,) = torch.autograd.grad((leaf * leaf).sum(), leaf, create_graph=True)
    return slope.detach() + 1
torch.ops.rankmem_test.trains_inside(torch.randn(40))
def asked_for(count, size):
    for _ in range(count):
        torch.empty(size)
def stepwise():
    while True:
        yield torch.empty(6007)
def recursive(depth):
    return torch.empty(6011) if depth == 0 else recursive(depth - 1)
steps = stepwise()
def first(): return next(steps)
def second(): return next(steps)
first(); second(); first()
recursive(5); recursive(7); recursive(300)
asked_for(1, 5003)
before = tap.stat(Stat.STACKS_GATHERED), tap.stat(Stat.STACKS_WALKED)
asked_for(100, 5003)
after = tap.stat(Stat.STACKS_GATHERED), tap.stat(Stat.STACKS_WALKED)
print(after[0] - before[0], after[1] - before[1], tap.stat(Stat.FRAMES_KNOWN))
tap.stop_stacks()
torch.zeros(1000)
tap.close()
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    recording = record_process(SCRIPT, tmp_path_factory.mktemp("calls"))
    assert recording.returncode == 0, recording.stderr
    return recording


def _stack(recording: Recording, call_id: int) -> list[tuple[str, str]]:
    (end,) = (end for end in recording.of(Kind.CALL_END) if end["call_id"] == call_id)
    frames = recording.reader.strings.stack(int(end["e"]))
    return [(Path(frame.file).name, frame.function) for frame in frames]


def test_an_event_belongs_to_the_outermost_operator(recording: Recording) -> None:
    (linear,) = recording.calls_named("aten::linear")
    events = recording.of(Kind.EVENT)
    inside = events[events["call_id"] == linear]
    assert [int(a) for a in inside["action"]] == [Action.ALLOC]
    assert int(inside["b"][0]) == 4 * 8 * 4
    assert recording.calls_named("aten::addmm") == []  # it ran inside aten::linear


def test_every_call_begins_before_its_events_and_ends_after_them(recording: Recording) -> None:
    begun: set[int] = set()
    ended: set[int] = set()
    for record in recording.records:
        call_id = int(record["call_id"])
        if record["kind"] == Kind.CALL_BEGIN:
            assert call_id not in begun
            begun.add(call_id)
        elif call_id != 0:
            assert call_id in begun
            assert call_id not in ended
        if record["kind"] == Kind.CALL_END:
            ended.add(call_id)
    assert begun == ended
    assert begun == set(range(1, len(begun) + 1))


def test_a_call_carries_module_phase_and_step_of_its_thread(recording: Recording) -> None:
    (linear,) = recording.calls_named("aten::linear")
    (begin,) = (b for b in recording.of(Kind.CALL_BEGIN) if b["call_id"] == linear)
    assert recording.text(begin["b"]) == "blocks.0.mlp"
    assert begin["action"] == Phase.FORWARD
    assert begin["c"] == 7
    (other,) = (b for b in recording.of(Kind.CALL_BEGIN) if recording.text(b["e"]) == "aten::mul"
                and b["thread"] != begin["thread"])  # fmt: skip
    assert other["b"] == 0  # a module belongs to the thread that said so


def test_a_stack_names_the_users_line_nearest_first(recording: Recording) -> None:
    (linear,) = recording.calls_named("aten::linear")
    stack = _stack(recording, linear)
    assert stack[0] == ("linear.py", "Linear.forward")
    assert ("script.py", "users_function") in stack
    assert stack[-1] == ("script.py", "<module>")
    assert not any("rankmem_agent" in file for file, _ in stack)


def test_a_stack_gives_the_line_of_the_call(recording: Recording) -> None:
    (linear,) = recording.calls_named("aten::linear")
    (end,) = (end for end in recording.of(Kind.CALL_END) if end["call_id"] == linear)
    frames = recording.reader.strings.stack(int(end["e"]))
    (frame,) = (frame for frame in frames if frame.function == "users_function")
    assert Path(frame.file).read_text().splitlines()[frame.line - 1] == "    return linear(x)"


def test_a_thread_of_the_users_has_its_own_stack(recording: Recording) -> None:
    stacks = [_stack(recording, call) for call in recording.calls_named("aten::ones")]
    assert any(("threading.py", "Thread.run") in stack for stack in stacks)


def _stacks_of_size(recording: Recording, size_bytes: int) -> list[list[tuple[str, str]]]:
    events = recording.of(Kind.EVENT)
    allocs = events[(events["action"] == Action.ALLOC) & (events["b"] == size_bytes)]
    return [_stack(recording, int(call)) for call in allocs["call_id"]]


def test_a_generators_frame_has_the_caller_that_resumes_it(recording: Recording) -> None:
    callers = [stack[1][1] for stack in _stacks_of_size(recording, 4 * 6007)]
    assert callers == ["first", "second", "first"]


def test_a_stack_has_as_many_frames_as_there_are_and_at_most_the_nearest_64(recording: Recording) -> None:
    depths = [len(stack) for stack in _stacks_of_size(recording, 4 * 6011)]
    assert depths == [7, 9, STACK_FRAMES_MAX]


def test_a_stack_that_a_thread_has_met_is_known_again_without_the_gil(recording: Recording) -> None:
    gathered, walked, frames_known = map(int, recording.stdout.split())
    if not frames_known:
        pytest.skip("this Python's frames are not known to the tap: it asks Python each time")
    assert gathered == 100
    assert walked <= 1  # the last 99 passes of the loop are at the same instruction


def test_no_stack_is_gathered_after_stop(recording: Recording) -> None:
    last = recording.calls_named("aten::zeros")[-1]
    assert _stack(recording, last) == []


def test_a_users_range_is_a_marker_and_never_a_call(recording: Recording) -> None:
    (begin,) = (m for m in recording.of(Kind.MARKER_BEGIN) if recording.text(m["e"]) == "my range")
    (end,) = (m for m in recording.of(Kind.MARKER_END) if m["a"] == begin["a"])
    assert begin["time_ns"] < end["time_ns"]
    assert recording.calls_named("my range") == []


def test_a_backward_call_leads_to_the_forward_call_that_made_its_node(recording: Recording) -> None:
    (linear,) = recording.calls_named("aten::linear")
    (forward_end,) = (end for end in recording.of(Kind.CALL_END) if end["call_id"] == linear)
    first, last = int(forward_end["b"]), int(forward_end["c"])
    assert first != NO_SEQUENCE
    links = [link for link in recording.of(Kind.CALL_FORWARD) if first <= int(link["b"]) <= last]
    names = {recording.text(b["e"]) for b in recording.of(Kind.CALL_BEGIN)
             if int(b["call_id"]) in {int(link["call_id"]) for link in links}}  # fmt: skip
    assert "aten::mm" in names  # the weight's gradient
    assert all(link["a"] == forward_end["thread"] for link in links)


def test_a_custom_function_keeps_its_own_numbers_apart_from_inner_calls(recording: Recording) -> None:
    (double,) = recording.calls_named("Double")
    (end,) = (end for end in recording.of(Kind.CALL_END) if end["call_id"] == double)
    assert end["b"] == end["c"] != NO_SEQUENCE
    links = {int(link["call_id"]) for link in recording.of(Kind.CALL_FORWARD) if link["b"] == end["b"]}
    assert links & set(recording.calls_named("aten::mul"))  # of Double's backward


def test_autograd_numbers_of_different_calls_do_not_overlap(recording: Recording) -> None:
    seen: set[tuple[int, int]] = set()
    for end in recording.of(Kind.CALL_END):
        if end["b"] == NO_SEQUENCE:
            continue
        numbers = {(int(end["thread"]), number) for number in range(int(end["b"]), int(end["c"]) + 1)}
        assert not numbers & seen
        seen |= numbers


def test_all_that_an_operator_does_is_its_own_even_a_backward(recording: Recording) -> None:
    (outer,) = recording.calls_named("rankmem_test::trains_inside")
    position = {(int(r["kind"]), int(r["call_id"])): index for index, r in enumerate(recording.records)}
    begin, end = position[Kind.CALL_BEGIN, outer], position[Kind.CALL_END, outer]
    inside = recording.records[begin : end + 1]
    assert set(inside["call_id"][inside["kind"] == Kind.EVENT].tolist()) == {outer}
    assert set(inside["call_id"][inside["kind"] == Kind.CALL_END].tolist()) == {outer}
    assert inside[-1]["b"] < inside[-1]["c"]  # the nodes of the graph made in it, and of its backward
