"""Outermost calls of modules, seen from frames by the real tap: their inputs, and the steps that they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.spool.layout import Kind
from repetitions import some_of
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


def test_a_copy_is_the_model_until_what_it_is_a_copy_of_is_trained(tmp_path: Path) -> None:
    recording = recorded(
        """
averaged, net = Net(), Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for size in (1, 2, 3):
    with torch.no_grad():
        averaged(torch.ones(9, 4))
        net(torch.ones(8, 4))  # a validation, also before the first step
    for _ in range(2): net(torch.ones(size, 4)).sum().backward()
    optimizer.step()
""",
        tmp_path,
    )
    lengths = [given[0][1][0] for _, _, given in shapes(recording)]
    assert lengths == [9, 1, 1, 8, 2, 2, 8, 3, 3]


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


ALIKE = """
import random
from collections import OrderedDict, UserDict, namedtuple
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
chance = random.Random(seed)
Pair = namedtuple("Pair", "image mask")
class Own(torch.Tensor):
    pass
class Cache:
    pass
class Whole(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(4, width)
    def forward(self, *args, **kwargs):
        return self.inner(torch.ones(2, 4) * 2)
class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

def tensor():
    shape = [chance.randint(0, 3) for _ in range(chance.choice((0, 1, 2, 2, 2, 9)))]
    return torch.zeros(shape, dtype=chance.choice((torch.float32, torch.float16, torch.int64, torch.bool)))

def value(depth=0):
    kind = chance.randint(0, 13 if depth < 5 else 4)
    if kind < 4: return tensor()
    if kind == 4: return chance.choice((None, 1, 2.5, "text", True, Cache(), object, torch.float32))
    if kind == 5: return tensor().as_subclass(Own)
    if kind == 6: return nn.Parameter(torch.ones(2, 2))
    if kind == 7: return torch.eye(3).to_sparse()
    some = [value(depth + 1) for _ in range(chance.randint(0, 3))]
    if kind == 8: return some
    if kind == 9: return tuple(some)
    if kind == 10: return Pair(value(depth + 1), None)
    named = {chance.choice(("a", "b", "long" * 20, 7)): each for each in some}
    return named if kind < 12 else OrderedDict(named) if kind == 12 else UserDict(named)

def call(module, given):
    args, kwargs = given
    how = chance.randint(0, 19)
    if how == 0:
        with Functions(): return module(*args, **kwargs)
    if how == 1:
        with Dispatch(): return module(*args, **kwargs)
    if how == 2:
        with FakeTensorMode(allow_non_fake_inputs=True): return module(*args, **kwargs)
    if how == 3:
        return torch.func.vmap(lambda x: module(*args, **kwargs) * x)(torch.ones(2))
    if how == 4:
        frozen = [parameter.requires_grad_(False) for parameter in module.parameters()]
        # Its parameters become constants of the graph.
        torch.jit.trace(lambda x: module(*args, **kwargs) * x, torch.ones(1), check_trace=False)
        return [parameter.requires_grad_() for parameter in frozen]
    with torch.set_grad_enabled(chance.random() < 0.3):
        return module(*args, **kwargs)

import warnings
warnings.simplefilter("ignore")
names = ("x", "y", "mask")
models = [Whole(3), Whole(4)]
losses = [nn.Softmax(-1), nn.Linear(4, 1)]
some_given = [
    (
        [value() for _ in range(chance.randint(0, 3))],
        {chance.choice(names): value() for _ in range(chance.randint(0, 2))},
    )
    for _ in range(12)
] + [([torch.ones(2, 4)], {}), ([], {"x": torch.ones(1), "y": (torch.ones(2), [torch.ones(3)])})] * 3
for turn in range(400):
    if chance.random() < 0.15:
        chance.choice(losses)(torch.ones(2, 4).mul(2))
    call(chance.choice(models) if turn % 10 == 7 else models[0], chance.choice(some_given))
    if turn in (120, 240):
        # A larger one; then one as large as the other, that may lie where that one lay.
        models[0] = Whole(5 if turn == 120 else 4)
        gc.collect()
    if turn == 330:
        end_of_calls()
"""
ENDS = {
    "nobody": "def end_of_calls(): pass",
    "an optimizer": "def end_of_calls(): torch.optim.SGD(models[0].parameters(), lr=0.1)",
    "the user": "def end_of_calls(): steps.ended_by_user()",
}
COUNTED = """
num_asked, entered = [0], ModelCalls.entered
def counting(self, *args):
    num_asked[0] += 1
    return entered(self, *args)
ModelCalls.entered = counting
"""


def told(recording: Recording) -> list[tuple[Any, ...]]:
    """The INPUT and STEP records, with the texts that they name."""
    return [
        (
            int(record["kind"]),
            *(int(record[name]) for name in ("action", "a", "b", "d")),
            recording.text(record["c"]) if record["c"] else None,
            recording.text(record["e"]),
        )
        for record in recording.records
        if record["kind"] in (Kind.INPUT, Kind.STEP)
    ]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("seed", some_of((1, 2, 3, 4, 5), 2))
def test_calls_that_are_answered_without_python_are_told_as_python_tells_them(
    end: str, seed: int, tmp_path: Path
) -> None:
    found, asked = [], []
    for answers in ("genuine", "lambda *_: False"):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        counted = COUNTED + f"genuine = tap.answer_same_calls\ntap.answer_same_calls = {answers}\n"
        prelude = PRELUDE.replace("modules.install()", counted + "modules.install()")
        script = f"{prelude}\nseed = {seed}\n{ENDS[end]}\n{ALIKE}\nprint(num_asked[0])\nend()\n"
        recording = record_process(script, folder, is_forked=True)
        assert recording.returncode == 0, recording.stderr
        found.append(told(recording))
        asked.append(int(recording.stdout))
    assert found[0] == found[1]
    assert len(found[0]) > 300
    assert asked[0] < asked[1] - 50


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
