"""Outermost calls of modules, seen from frames by the real tap: their inputs, and the steps that they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.spool.layout import Kind
from tap_process import CALLS_OF_MODELS, Recording, record_process

PRELUDE = (
    """
import gc
from torch import nn
"""
    + CALLS_OF_MODELS
    + """

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, width), nn.ReLU())
    def forward(self, x, scale=None, **others):
        assert not others, others
        return self.inner(x)

def end():
    calls.finish()
    assert not guard.failures
    tap.stop_stacks()
    tap.close()
"""
)


def recorded(script: str, folder: Path) -> Recording:
    recording = record_process(PRELUDE + script + "\nend()\n", folder, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    assert not recording.gaps
    return recording


def shapes(recording: Recording) -> list[tuple[int, str, list[Any]]]:
    """Step, module, and shapes by argument of each INPUT record."""
    return [
        (
            int(record["a"]),
            recording.text(record["c"]) or "",
            [(each[0], each[2]) for each in json.loads(recording.text(record["e"]) or "")["tensors"]],
        )
        for record in recording.of(Kind.INPUT)
    ]


def steps(recording: Recording) -> list[tuple[int, str | None]]:
    return [(int(record["a"]), recording.text(record["e"])) for record in recording.of(Kind.STEP)]


def of_calls(count: int) -> list[tuple[int, str]]:
    return [(step, "model call") for step in range(count)]


def test_each_call_is_a_step_also_without_an_operator_between_two(tmp_path: Path) -> None:
    recording = recorded(
        """
net, x = Net(), torch.ones(2, 4)
with torch.inference_mode():
    for _ in range(5): net(x)
    net(x=torch.ones(3, 4), scale=[torch.ones(1)])
""",
        tmp_path,
    )
    assert steps(recording) == of_calls(6)
    assert shapes(recording) == [(step, "Net", [("0", [2, 4])]) for step in range(5)] + [
        (5, "Net", [("x", [3, 4]), ("scale.0", [1])])
    ]
    kinds = [int(kind) for kind in recording.records["kind"] if kind in (Kind.INPUT, Kind.STEP)]
    assert kinds == [Kind.INPUT, Kind.STEP] * 6
    begun = {int(record["c"]) for record in recording.of(Kind.CALL_BEGIN)}
    assert begun >= set(range(6)), "calls know their step"


def test_what_is_freed_as_the_call_returns_is_freed_in_its_step(tmp_path: Path) -> None:
    recording = recorded(
        """
net, x = Net(), torch.ones(2, 4)
with torch.no_grad():
    for _ in range(3): net(x)
    del net
    x.sum()
""",
        tmp_path,
    )
    ends = [place for place, kind in enumerate(recording.records["kind"]) if kind == Kind.STEP]
    begins = [place for place, kind in enumerate(recording.records["kind"]) if kind == Kind.INPUT]
    assert len(ends) == 3
    assert all(end < begin for end, begin in zip(ends, begins[1:], strict=False))


def test_a_call_that_raises_ends_its_step_even_if_its_traceback_is_kept(tmp_path: Path) -> None:
    recording = recorded(
        """
net, kept = Net(), []
with torch.no_grad():
    for size in (4, 3, 4, 4):
        try: net(torch.ones(2, size).mul(2).reshape(2, size))
        except RuntimeError as error: kept.append(error)
assert len(kept) == 1
""",
        tmp_path,
    )
    assert steps(recording) == of_calls(4)


def test_a_training_has_the_optimizers_steps_alone_and_its_inputs(tmp_path: Path) -> None:
    recording = recorded(
        """
from rankmem_agent.hooks.step_hooks import StepHooks
from rankmem_agent.hooks.tags import Tags
net = Net()
with torch.no_grad():
    net(torch.ones(9, 4))  # before there is an optimizer
hooks = StepHooks(tap, tracing.hides_tensors, guard, steps, Tags(tap, tracing.hides_tensors, guard))
hooks.install()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for size in (2, 3):
    with torch.no_grad():
        for _ in range(20): net(torch.ones(1, 4))
    net(torch.ones(size, 4)).sum().backward()
    optimizer.step()
""",
        tmp_path,
    )
    assert steps(recording) == [(0, "model call"), (1, "SGD"), (2, "SGD")]
    trained = [record for record in recording.of(Kind.INPUT) if record["action"]]
    assert [int(record["a"]) for record in trained] == [1, 2]
    assert len(recording.of(Kind.INPUT)) == 1 + 2 * (8 + 1)


def test_where_autograd_records_backward_is_in_the_step_and_a_recomputed_part_is_no_call(
    tmp_path: Path,
) -> None:
    recording = recorded(
        """
from torch.utils.checkpoint import checkpoint
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Net(64)
    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=use_reentrant)
for use_reentrant in (False, True):
    net = Checkpointed()
    for _ in range(2): net(torch.ones(2, 4, requires_grad=True)).sum().backward()
""",
        tmp_path,
    )
    assert steps(recording) == of_calls(4)
    assert [module for _, module, _ in shapes(recording)] == ["Checkpointed"] * 4
    kinds = list(recording.records["kind"])
    first_end = kinds.index(Kind.STEP)
    nodes = [place for place, record in enumerate(recording.records) if record["kind"] == Kind.CALL_FORWARD]
    assert nodes[0] < first_end


def test_a_call_in_another_thread_while_one_is_open_is_a_part_of_it(tmp_path: Path) -> None:
    recording = recorded(
        """
class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.replica = Net()
    def forward(self, x):
        x = x + 1
        def work():
            with torch.no_grad(): self.replica(x)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        return self.replica(x)
net = Parallel()
with torch.no_grad():
    for _ in range(4): net(torch.ones(2, 4))
worker = threading.Thread(target=lambda: torch.no_grad()(net)(torch.ones(2, 4)))
worker.start(); worker.join()
""",
        tmp_path,
    )
    assert steps(recording) == of_calls(5)


def test_a_model_without_a_name_and_one_that_is_scripted_or_compiled(tmp_path: Path) -> None:
    recording = recorded(
        """
import warnings
warnings.simplefilter("ignore")
net, x = Net(), torch.ones(2, 4)
class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x)
with torch.no_grad():
    compiled = torch.compile(net, backend="eager")
    for _ in range(3): compiled(x)
    del compiled, net
    torch._dynamo.reset()
    gc.collect()
    scripted = torch.jit.script(Scripted())
    for _ in range(2): scripted(x)
""",
        tmp_path,
    )
    found = steps(recording)
    assert found == of_calls(len(found))
    assert 3 <= len(found) <= 5, "the first call of what is compiled is traced"


def test_an_error_of_ours_is_the_guards_and_the_call_goes_on(tmp_path: Path) -> None:
    recording = recorded(
        """
calls._tracing = None
net = Net()
with torch.no_grad(): net(torch.ones(2, 4))
assert guard.failures == 1
guard.failures = 0
""",
        tmp_path,
    )
    assert steps(recording) == []


@pytest.mark.parametrize("count", [200])
def test_thousands_of_calls_leave_nothing_behind(count: int, tmp_path: Path) -> None:
    recording = recorded(
        f"""
net, x = Net(), torch.ones(2, 4)
with torch.no_grad():
    for _ in range(10): net(x)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range({count}): net(x)
    gc.collect()
    print(len(gc.get_objects()) - before)
""",
        tmp_path,
    )
    assert int(recording.stdout) < 20
    assert steps(recording) == of_calls(10 + count)
