"""What an allocation shows of where it is made, read by the real tap in real processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankmem_agent.spool.layout import FRAMES_NONE, NO_SEQUENCE, Action, Kind
from rankmem_ship.spool_reader.segments import named
from tap_process import PRELUDE, Recording, record_process

SHOWING = (
    PRELUDE.replace("build_tap()", "build_tap(with_evidence=True)")
    + """
from torch import nn
from torch.nn import functional
from rankmem_agent.hooks.module_frames import follow
assert follow(tap, lambda *modules: None)
ALL |= What.EVIDENCE | What.SHOW_ALL
"""
)
OUT_OF_MEMORY = """
FAR = 1 << 46
class Wide(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 2
    @staticmethod
    def backward(context, gradient): return gradient * torch.ones(1).expand(FAR).clone()[:1]
one, wide = torch.ones(1, requires_grad=True), torch.ones(1, 1).expand(1 << 23, 1 << 23)
linear, long = nn.Linear(1, 1 << 20), torch.ones(1, 1).expand(1 << 26, 1)
labels = torch.zeros(1, dtype=torch.long).expand(1 << 23)
ASKING = {
    "empty": lambda: torch.empty(FAR),
    "clone": lambda: wide.clone(),
    "mul": lambda: wide * 2,
    "linear": lambda: linear(long),
    "softmax": lambda: functional.softmax(wide, 1),
    "cross_entropy": lambda: functional.cross_entropy(wide, labels),
    "in a Python function's backward": lambda: Wide.apply(one).backward(),
    "in a backward": lambda: (one.expand(FAR) * torch.ones(1).expand(FAR)).sum().backward(),
}
def ask():
    for name, asking in ASKING.items():
        try:
            asking()
        except RuntimeError:
            continue
        raise AssertionError(f"{name}: there was enough")
tap.enable(ALL)
ask()
tap.enable(What.CALLS, False)
ask()
tap.close()
"""
PLACES = """
def twice(layer, x): return layer(x)
layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
x = torch.ones(4, 8)
def step(which):
    out = twice(layers[which], x)
    loss = out.sum()
    loss.backward()
    for p in layers[which].parameters(): p.grad = None
    del out, loss
for which in (0, 1):
    step(which)
tap.enable(ALL)
for which in (0, 0, 1):
    tap.record(Kind.STEP, step=which)
    step(which)
tap.record(Kind.STEP, step=9)
thread = threading.Thread(target=lambda: torch.empty(5003))
thread.start()
thread.join()
tap.stop_stacks()
torch.empty(6007)
tap.close()
"""


def recorded(script: str, folder: Path) -> Recording:
    recording = record_process(script, folder, prelude=SHOWING, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    assert not recording.gaps
    return recording


def shown(recording: Recording) -> list[tuple[Any, Any | None]]:
    """(event, its evidence) of each ALLOC and OOM: evidence is the record behind its event."""
    events = named(recording.records, Kind.EVENT)
    evidence = named(recording.records, Kind.EVIDENCE)
    kinds = [*recording.records["kind"].tolist(), 0]
    asking = (kinds[:-1] == np.array(Kind.EVENT)) & np.isin(events["action"], (Action.ALLOC, Action.OOM))
    return [
        (events[at], evidence[at + 1] if kinds[at + 1] == Kind.EVIDENCE else None)
        for at in np.flatnonzero(asking).tolist()
    ]


def operator_of(recording: Recording, event: Any, evidence: Any) -> str | None:
    """By the call that was observed, else by the native stack."""
    names = {int(begin["call_id"]): begin["e"] for begin in recording.of(Kind.CALL_BEGIN)}
    return recording.text(names.get(int(event["call_id"]), evidence["native_operator"]))


def test_an_out_of_memory_that_nobody_observes_has_the_operator_that_the_observer_names(
    tmp_path: Path,
) -> None:
    recording = recorded(OUT_OF_MEMORY, tmp_path)
    failed = [(event, found) for event, found in shown(recording) if event["action"] == Action.OOM]
    assert len(failed) == 16
    operators = [operator_of(recording, event, found) for event, found in failed]
    expected = [
        "aten::empty", "aten::clone", "aten::mul", "aten::linear", "aten::softmax",
        "aten::cross_entropy_loss", "aten::clone", "aten::mul",
    ]  # fmt: skip
    assert operators[:8] == expected
    assert operators[8:] == expected
    assert [int(event["call_id"]) for event, _ in failed[8:]] == [0] * 8
    assert [bool(found["native_operator"]) for _, found in failed] == [False] * 8 + [True] * 8
    keys = [int(found["frames_key"]) for _, found in failed]
    assert min(keys) > FRAMES_NONE
    assert len(set(keys)) == 16  # eight places, asked from two lines
    assert [bool(found["node_class"]) for _, found in failed] == 2 * ([False] * 6 + [True, False])
    assert [bool(found["modules_key"]) for _, found in failed] == 2 * ([False] * 3 + [True] + [False] * 4)


def test_every_allocation_is_followed_by_its_evidence_until_the_interpreter_ends(tmp_path: Path) -> None:
    recording = recorded(PLACES, tmp_path)
    (*all_shown, (late, nothing)) = shown(recording)
    assert late["size_bytes"] == 6007 * 4
    assert nothing is None
    assert len(recording.of(Kind.EVIDENCE)) == len(all_shown) > 12
    for event, found in all_shown:
        assert found is not None
        assert found["thread"] == event["thread"]
        assert found["time_ns"] == event["time_ns"]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The evidence of three equal steps, of which the third has another layer."""
    recording = recorded(PLACES, tmp_path_factory.mktemp("places"))
    ends = recording.seq[recording.records["kind"] == Kind.STEP].tolist()
    at = recording.seq[recording.records["kind"] == Kind.EVIDENCE]
    found = named(recording.of(Kind.EVIDENCE), Kind.EVIDENCE)
    return [list(found[(at > begin) & (at < end)]) for begin, end in pairwise(ends)]


def column(step: Sequence[Any], name: str) -> list[int]:
    return [int(found[name]) for found in step]


def test_equal_steps_have_equal_keys_and_another_module_has_another(steps: list[list[Any]]) -> None:
    first, second, other = steps
    assert len(first) > 4
    for name in ("frames_key", "modules_key", "node_class"):
        assert column(first, name) == column(second, name)
    assert column(first, "frames_key") == column(other, "frames_key")  # the same code in each
    forward = [bool(key) for key in column(first, "modules_key")]
    assert any(forward)
    assert not all(forward)
    differs = np.array(column(first, "modules_key")) != np.array(column(other, "modules_key"))
    assert differs.tolist() == forward


def test_in_backward_the_node_leads_to_the_forward_call_that_made_it(steps: list[list[Any]]) -> None:
    places = []
    for step in steps:
        made = column(step, "nodes_made")
        nodes = [int(found["node_sequence"]) for found in step if found["node_class"]]
        assert max(nodes) < made[-1]
        places.append(([n - made[0] for n in made], [sequence - made[0] for sequence in nodes]))
        outside = [int(found["node_sequence"]) for found in step if not found["node_class"]]
        assert set(outside) == {NO_SEQUENCE}
    assert places[0] == places[1] == places[2]


def test_a_block_in_a_node_of_the_engine_alone_has_no_operator_and_a_storage_has_none(tmp_path: Path) -> None:
    recording = recorded(
        """
tap.enable(ALL)
torch.UntypedStorage(40_009)
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 2
    @staticmethod
    def backward(context, gradient):
        torch.UntypedStorage(40_011)
        return gradient
Doubled.apply(torch.ones(3, requires_grad=True)).sum().backward()
tap.close()
""",
        tmp_path,
    )
    storages = {int(event["size_bytes"]): found for event, found in shown(recording)}
    for size_bytes in (40_009, 40_011):
        found = storages[size_bytes]
        assert found is not None
        assert found["native_operator"] == 0
        assert found["frames_key"] > FRAMES_NONE
    assert storages[40_011]["node_class"]


def test_a_tap_that_is_built_without_evidence_writes_none(tmp_path: Path) -> None:
    plain = SHOWING.replace("with_evidence=True", "")
    script = "tap.enable(ALL); torch.empty(7); print(tap.stat(Stat.EVIDENCE_READ)); tap.close()"
    recording = record_process(script, tmp_path, prelude=plain, is_forked=True)
    assert recording.stdout.split() == ["0"], recording.stderr
    assert len(recording.of(Kind.EVENT)) == 2
    assert not len(recording.of(Kind.EVIDENCE))


def test_without_modules_that_can_be_read_no_evidence_is_written_and_the_tap_says_so(tmp_path: Path) -> None:
    unread = SHOWING.replace("assert follow(tap, lambda *modules: None)", "")
    script = "tap.enable(ALL); torch.empty(7); print(tap.stat(Stat.EVIDENCE_READ)); tap.close()"
    recording = record_process(script, tmp_path, prelude=unread, is_forked=True)
    assert recording.stdout.split() == ["0"], recording.stderr
    assert not len(recording.of(Kind.EVIDENCE))
