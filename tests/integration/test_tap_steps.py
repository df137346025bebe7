"""What the tap tags around optimizer.step(), in one call before and one after, beside what Python tags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmem_agent.spool.layout import Category, Kind
from tap_process import Recording, record_process

SUPPORT = str(Path(__file__).parents[1] / "support")
SCENES = f"""
import json
sys.path.insert(0, {SUPPORT!r})
import step_scenes
print(json.dumps(step_scenes.run(tap, natively=%s)))
tap.close()
"""
THREADS = f"""
import sys, time
sys.path.insert(0, {SUPPORT!r})
import step_scenes
from rankmem_agent.hooks.guard import Guard
guard = Guard(0)
hooks = step_scenes.hooked(tap, guard)
sys.setswitchinterval(1e-5)
class Still(torch.optim.SGD):  # a real one would fail by itself where a gradient goes while it looks
    def step(self, closure=None): pass
models = [torch.nn.Linear(16, 16) for _ in range(4)]
shared = Still(models[0].parameters(), lr=0.1)
def train(model):
    own = Still(model.parameters(), lr=0.1)
    for number in range(100):
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        own.step()
        shared.step()
        if number % 10 == 0:
            shared.param_groups[0]["params"].reverse()
            model.weight.data = model.weight.data.clone()
            Still(model.parameters(), lr=0.1).step()
def disturb():
    while not ended:
        for model in models:  # not to None: torch 2.13 itself crashes where another thread reads .grad then
            model.weight.grad = torch.ones_like(model.weight)
            model.bias.grad = torch.ones_like(model.bias)
ended = []
threads = [threading.Thread(target=train, args=(model,)) for model in models]
other = threading.Thread(target=disturb)
for thread in (*threads, other): thread.start()
for thread in threads: thread.join()
ended.append(True)
other.join()
print(guard.failures)
tap.close()
shared.step()
print(len(hooks._known))
"""
LIVES = f"""
import gc, weakref
sys.path.insert(0, {SUPPORT!r})
import step_scenes
from rankmem_agent.hooks.guard import Guard
step_scenes.hooked(tap, Guard(0))
def refers_to_its_optimizer():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.optimizer = optimizer
    weight.grad = torch.ones(3)
    optimizer.step(); optimizer.step()
    return weakref.ref(weight), weakref.ref(optimizer)
def dropped():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.step(); optimizer.step()
    optimizer.param_groups.clear()
    gone = weakref.ref(weight)
    del weight
    return optimizer, gone
gone = refers_to_its_optimizer()
optimizer, weight = dropped()
gc.collect()
print([each() is None for each in (*gone, weight)])
tap.close()
"""


ASKED = f"""
sys.path.insert(0, {SUPPORT!r})
import step_scenes
from rankmem_agent.hooks.guard import Guard
class Own(torch.Tensor):
    asked = []
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, dispatch_layout=True)
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.asked.append(str(function))
        return torch.strided if function is torch.ops.prim.layout.default else NotImplemented
guard = Guard(0)
step_scenes.hooked(tap, guard)
optimizer = step_scenes.Still([Own(torch.ones(3)).requires_grad_()], lr=0.1)
assert optimizer.param_groups[0]["params"][0].layout is torch.strided and Own.asked
Own.asked.clear()
optimizer.step(); optimizer.step()
print(Own.asked, guard.failures)
tap.close()
"""


@pytest.mark.parametrize("natively", [True, False], ids=["natively", "in Python"])
def test_each_step_tags_the_parameters_that_moved_all_gradients_and_new_state(
    tmp_path: Path, natively: bool
) -> None:
    recording = record_process(SCENES % natively, tmp_path, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    known: set[int] = set()
    for told in json.loads(recording.stdout):
        tags = _tags(recording, told["first"], told["last"])
        parameters = tags[Category.PARAMETER]
        if told["may_tell_more"]:
            parameters = [each for each in parameters if each in told["parameters"]]
        assert parameters == told["parameters"], told["scene"]
        assert tags[Category.GRADIENT] == [each for each in told["gradients"] if each], told["scene"]
        assert set(told["state"]) <= known | set(tags[Category.OPTIMIZER_STATE]), told["scene"]
        known |= set(tags[Category.OPTIMIZER_STATE])


def test_the_tap_and_python_write_the_same_tags_and_steps(tmp_path: Path) -> None:
    told = []
    for natively in (True, False):
        folder = tmp_path / str(natively)
        folder.mkdir()
        recording = record_process(SCENES % natively, folder, is_forked=True)
        told.append(
            [
                (step["scene"], _facts(recording, step["first"], step["last"]))
                for step in json.loads(recording.stdout)
                if not step["may_tell_more"]
            ]
        )
    assert told[0] == told[1]
    assert len(told[0]) > 30


def test_threads_that_step_and_change_each_others_gradients_neither_crash_nor_fail(tmp_path: Path) -> None:
    recording = record_process(THREADS, tmp_path)
    assert recording.returncode == 0, recording.stderr
    failures, known = recording.stdout.split()
    assert failures == "0"
    assert known == "1"  # those that are gone are forgotten
    assert len(recording.of(Kind.STEP)) > 10


def test_nothing_of_the_users_is_kept_alive_by_a_plan(tmp_path: Path) -> None:
    recording = record_process(LIVES, tmp_path, is_forked=True)
    assert recording.stdout.strip() == "[True, True, True]", recording.stderr


def test_the_state_of_an_optimizer_without_parameters_is_followed(tmp_path: Path) -> None:
    recording = record_process(
        f"""
sys.path.insert(0, {SUPPORT!r})
import step_scenes
from rankmem_agent.hooks.guard import Guard
step_scenes.hooked(tap, Guard(0))
optimizer = step_scenes.Still([{{"params": []}}], lr=0.1)
optimizer.state["of the script"] = {{"sum": torch.ones(3)}}
optimizer.step(); optimizer.step()
print(optimizer.state["of the script"]["sum"].data_ptr())
tap.close()
""",
        tmp_path,
    )
    assert recording.returncode == 0, recording.stderr
    tags = recording.of(Kind.TAG)
    assert [(int(each["action"]), int(each["a"])) for each in tags] == [
        (Category.OPTIMIZER_STATE, int(recording.stdout))
    ]


def test_a_tensor_class_of_the_users_is_not_asked_how_it_lies_in_memory(tmp_path: Path) -> None:
    recording = record_process(ASKED, tmp_path, is_forked=True)
    assert recording.stdout == "[] 0\n", recording.stderr


def _tags(recording: Recording, first: int, last: int) -> dict[Category, list[int]]:
    """Addresses of the TAG records of a stretch of the log, sorted, by category."""
    within = (recording.seq >= first) & (recording.seq < last) & (recording.records["kind"] == Kind.TAG)
    tags = recording.records[within]
    return {
        category: sorted(int(each["a"]) for each in tags[tags["action"] == category]) for category in Category
    }


def _facts(recording: Recording, first: int, last: int) -> list[tuple[int, int, int, int, str | None]]:
    """The TAG and STEP records of a stretch without their addresses, sorted."""
    records = recording.records[(recording.seq >= first) & (recording.seq < last)]
    kept = records[(records["kind"] == Kind.TAG) | (records["kind"] == Kind.STEP)]
    names = [recording.text(each) for each in kept["e"]]
    fields = zip(kept["kind"], kept["action"], kept["c"], kept["d"], names, strict=True)
    return sorted((int(kind), int(action), int(c), int(d), name) for kind, action, c, d, name in fields)
