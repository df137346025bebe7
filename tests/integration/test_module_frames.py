"""Modules read from Python frames: what each call says of its module, in real processes, by the real tap."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from compared_modules import Said, compared
from rankmem_agent.spool.layout import Kind, Phase
from repetitions import long_but
from tap_process import Recording, record_process

PRELUDE = """
import gc
from torch import nn
from torch.nn.modules import module as torch_module
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.modules import Modules
silent = []
guard = Guard(0)
modules = Modules(tap, lambda: bool(silent), guard, lambda: 0, tap.module_reader())

def begin():
    modules.install()
    tap.enable(ALL)

def end():
    assert not guard.failures
    tap.stop_stacks()
    tap.close()
"""


def recorded(script: str, folder: Path) -> Recording:
    recording = record_process(PRELUDE + script, folder, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    assert not recording.gaps
    return recording


def calls(recording: Recording) -> list[tuple[str, str, Phase]]:
    """(operator, module, phase) of each call, in order."""
    return [
        (recording.text(begin["e"]) or "", recording.text(begin["b"]) or "", Phase(int(begin["action"])))
        for begin in recording.of(Kind.CALL_BEGIN)
    ]


def modules_of(recording: Recording, operator: str) -> list[str]:
    return [module for name, module, _ in calls(recording) if name == operator]


def test_no_module_has_a_hook_and_each_call_its_module_and_phase(tmp_path: Path) -> None:
    recording = recorded(
        """
net = nn.Sequential(nn.Sigmoid(), nn.Sequential(nn.Tanh()))
begin()
assert not torch_module._global_forward_pre_hooks and not torch_module._global_forward_hooks
assert tap.stat(Stat.MODULES_FOLLOWED) == 1
net(torch.ones(3).exp()).relu()
end()
""",
        tmp_path,
    )
    assert calls(recording)[-4:] == [
        ("aten::exp", "", Phase.OTHER),
        ("aten::sigmoid", "0", Phase.FORWARD),
        ("aten::tanh", "1.0", Phase.FORWARD),
        ("aten::relu", "", Phase.OTHER),
    ]


def test_a_module_at_the_address_of_one_that_is_gone_has_its_own_name(tmp_path: Path) -> None:
    recording = recorded(
        """
begin()
seen, reused = {}, 0
for turn in range(60):
    module = (nn.Sigmoid, nn.Tanh)[turn % 2]()
    reused += seen.get(id(module), type(module)) is not type(module)
    seen[id(module)] = type(module)
    module(torch.ones(3))
    del module
end()
print(reused)
""",
        tmp_path,
    )
    assert int(recording.stdout) > 10, "no address was used again: nothing was tested"
    assert set(modules_of(recording, "aten::sigmoid")) == {"Sigmoid"}
    assert set(modules_of(recording, "aten::tanh")) == {"Tanh"}


def test_thousands_of_modules_that_come_and_go_keep_their_names_apart(tmp_path: Path) -> None:
    recording = recorded(
        """
import random
class Making(nn.Module):
    def forward(self, x):
        alive = []
        for turn in range(6000):
            module = random.choice((nn.Sigmoid, nn.Tanh, nn.ReLU, nn.Softplus))()
            module(x)
            alive.append(module)
            random.choice(alive)(x)
            if random.random() < 0.45:
                alive.pop(random.randrange(len(alive)))
begin()
Making()(torch.ones(3))
end()
""",
        tmp_path,
    )
    found = Counter((name, module) for name, module, _ in calls(recording) if module)
    assert set(found) == {
        ("aten::sigmoid", "Sigmoid"), ("aten::tanh", "Tanh"), ("aten::relu", "ReLU"),
        ("aten::softplus", "Softplus"),
    }  # fmt: skip
    assert sum(found.values()) == 12_000


def test_each_thread_has_the_modules_of_its_own_stack(tmp_path: Path) -> None:
    recording = recorded(
        """
both_in = threading.Barrier(2)
class Waiting(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        both_in.wait(20)
        x = self.inner(x)
        both_in.wait(20)
        return x + 1
begin()
nets = [nn.Sequential(Waiting(nn.Sigmoid())), nn.ModuleDict({"other": Waiting(nn.Tanh())})]
x = torch.ones(3)
threads = [threading.Thread(target=net, args=(x,)) for net in (nets[0], nets[1]["other"])]
for thread in threads: thread.start()
x.exp()
for thread in threads: thread.join()
end()
""",
        tmp_path,
    )
    assert modules_of(recording, "aten::sigmoid") == ["0.inner"]
    assert modules_of(recording, "aten::tanh") == ["other.inner"]
    assert modules_of(recording, "aten::exp") == [""]
    assert sorted(modules_of(recording, "aten::add")) == ["0", "other"]


def test_a_forward_that_raised_leaves_nothing_behind(tmp_path: Path) -> None:
    recording = recorded(
        """
class Raising(nn.Module):
    def forward(self, x):
        raise (KeyboardInterrupt if x.sigmoid().sum() > 1 else ValueError)
begin()
net = nn.Sequential(Raising())
for scale in (1, 0):
    try:
        net(torch.ones(3) * scale)
    except (KeyboardInterrupt, ValueError):
        torch.ones(3).tanh()
end()
""",
        tmp_path,
    )
    assert modules_of(recording, "aten::sigmoid") == ["0", "0"]
    assert modules_of(recording, "aten::tanh") == ["", ""]


def test_a_module_far_down_the_stack_is_found(tmp_path: Path) -> None:
    recording = recorded(
        """
def down(x, depth):
    return down(x, depth - 1) if depth else x.sigmoid()
class Deep(nn.Module):
    def forward(self, x):
        return down(x, 800)
begin()
nn.Sequential(Deep())(torch.ones(3))
down(torch.ones(3), 800)
end()
""",
        tmp_path,
    )
    assert modules_of(recording, "aten::sigmoid") == ["0", ""]


def test_a_view_that_makes_a_node_and_no_block_has_the_module_it_began_in(tmp_path: Path) -> None:
    recording = recorded(
        """
class Viewing(nn.Module):
    def forward(self, x):
        return x.view(3, 1)
begin()
nn.Sequential(Viewing())(torch.ones(3, requires_grad=True)).sum().backward()
end()
""",
        tmp_path,
    )
    assert modules_of(recording, "aten::view") == ["0"]


def test_a_module_is_named_under_no_grad_within_a_handler_and_nothing_of_python_changes(
    tmp_path: Path,
) -> None:
    recording = recorded(
        """
parameters = []
modules.when_named(lambda root: parameters.extend(p.data_ptr() for p in root.parameters()))
begin()
gc.enable()
with torch.inference_mode():
    try:
        {}["missing"]
    except KeyError as error:
        raised = error
        y = nn.Sequential(nn.Linear(3, 2))(torch.ones(1, 3))
        assert sys.exc_info()[1] is error
    assert torch.is_inference_mode_enabled() and y.is_inference()
assert torch.is_grad_enabled() and gc.isenabled()
assert len(parameters) == 2
end()
""",
        tmp_path,
    )
    assert modules_of(recording, "aten::linear") == ["0"]


def test_an_interrupt_while_a_module_is_named_reaches_the_training(tmp_path: Path) -> None:
    recording = recorded(
        """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where the tests run
modules.when_named(lambda root: signal.raise_signal(signal.SIGINT))
begin()
try:
    nn.Sequential(nn.Tanh())(torch.ones(3))
    for _ in range(10_000):
        pass
except KeyboardInterrupt:
    print("interrupted")
end()
""",
        tmp_path,
    )
    assert recording.stdout == "interrupted\n"


def test_garbage_is_collected_as_the_program_wants_it_while_a_module_is_named(tmp_path: Path) -> None:
    recording = recorded(
        """
found = []
def named(root):
    found.append(gc.isenabled())
    gc.disable()
modules.when_named(named)
begin()
gc.enable()
nn.Tanh()(torch.ones(3))
print(found, gc.isenabled())
end()
""",
        tmp_path,
    )
    assert recording.stdout == "[True] False\n"


@pytest.mark.parametrize("error", ["MemoryError", "RecursionError"])
def test_what_naming_a_module_had_no_room_for_is_not_raised_in_the_training(
    tmp_path: Path, error: str
) -> None:
    recording = recorded(
        f"""
def name(module, around=None):
    raise {error}
modules.name = name
begin()
nn.Tanh()(torch.ones(3))
for _ in range(10_000):
    pass
assert tap.stat(Stat.MODULES_ASKED) == 1
end()
""",
        tmp_path,
    )
    assert modules_of(recording, "aten::tanh") == [""]


def test_an_interpreter_that_ends_while_a_module_is_named_is_asked_for_no_more(tmp_path: Path) -> None:
    recording = recorded(
        """
asked = []
def name(module, around=None):
    asked.append(type(module).__name__)
    tap.stop_stacks()  # as at the interpreter's end; it waits for a second
modules.name = name
begin()
nn.Sequential(nn.Tanh())(torch.ones(3))
print(*asked)
end()
""",
        tmp_path,
    )
    assert recording.stdout == "Sequential\n"


def test_while_something_is_traced_a_module_has_no_name_and_later_has(tmp_path: Path) -> None:
    recording = recorded(
        """
begin()
net = nn.Sequential(nn.Tanh())
silent.append(True)
for _ in range(200):
    net(torch.ones(3))
silent.clear()
for _ in range(40):
    net(torch.ones(3))
asked = tap.stat(Stat.MODULES_ASKED)
assert asked < 100, asked
end()
""",
        tmp_path,
    )
    said = modules_of(recording, "aten::tanh")
    assert said[:200] == [""] * 200
    assert said[-20:] == ["0"] * 20
    assert {phase for name, _, phase in calls(recording) if name == "aten::tanh"} == {Phase.FORWARD}


def test_where_calls_of_modules_run_other_code_the_hooks_do_it(tmp_path: Path) -> None:
    recording = recorded(
        """
def call(self, *args, **kwargs):
    return self._call_impl(*args, **kwargs)
nn.Module.__call__ = call
begin()
assert tap.stat(Stat.MODULES_FOLLOWED) == 0
assert torch_module._global_forward_pre_hooks and torch_module._global_forward_hooks
nn.Sequential(nn.Tanh())(torch.ones(3))
end()
""",
        tmp_path,
    )
    assert modules_of(recording, "aten::tanh") == ["0"]


STEPPING = """
from rankmem_agent.hooks.step_hooks import StepHooks
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import Tags
StepHooks(tap, lambda: False, guard, Steps(tap), Tags(tap, lambda: False, guard)).install()
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    @torch.no_grad()
    def step(self, closure=None):
        torch.ones(3).exp()
        if closure is not None:
            with torch.enable_grad():
                closure()
"""


def test_an_optimizer_that_steps_within_a_module_is_no_forward_and_its_closure_is(tmp_path: Path) -> None:
    recording = recorded(
        STEPPING
        + """
class Manual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sigmoid()
    def forward(self, x):
        optimizer.step()
        optimizer.step(lambda: self.inner(x).cos())
        return x.tanh()
optimizer = Own([torch.ones(3, requires_grad=True)])
begin()
Manual()(torch.ones(3))
end()
""",
        tmp_path,
    )
    said = {(name, phase) for name, _, phase in calls(recording) if name != "aten::ones"}
    assert said == {
        ("aten::exp", Phase.OPTIMIZER),
        ("aten::sigmoid", Phase.FORWARD),
        ("aten::cos", Phase.OTHER),
        ("aten::tanh", Phase.FORWARD),
    }


def test_an_optimizer_whose_step_raised_is_not_thought_to_go_on_in_the_next_module(tmp_path: Path) -> None:
    recording = recorded(
        STEPPING
        + """
before = torch.ones(3, requires_grad=True).exp()
class Backward(nn.Module):
    def forward(self, x):
        before.backward(x)
        return x
class Failing(Own):
    def step(self, closure=None):
        super().step(closure)
        raise RuntimeError("overflow")
begin()
for net in (nn.Tanh(), Backward()):
    try:
        Failing([torch.ones(3, requires_grad=True)]).step()
    except RuntimeError:
        torch.ones(3).cos()
    net(torch.ones(3)).sin()
end()
""",
        tmp_path,
    )
    said = [(name, phase) for name, _, phase in calls(recording) if name != "aten::ones"]
    failed = [
        ("aten::exp", Phase.OPTIMIZER),
        ("aten::cos", Phase.OPTIMIZER),
    ]  # until a module runs
    assert said == [
        *failed, ("aten::tanh", Phase.FORWARD), ("aten::sin", Phase.OTHER),
        *failed, ("aten::mul", Phase.BACKWARD), ("aten::sin", Phase.OTHER),
    ]  # fmt: skip


def test_threads_in_modules_while_the_tap_ends_and_a_forked_child_do_no_harm(tmp_path: Path) -> None:
    recording = recorded(
        """
begin()
net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
def run():
    while True:
        nn.Sequential(net, nn.Sigmoid())(torch.ones(1, 3))
for _ in range(4):
    threading.Thread(target=run, daemon=True).start()
for _ in range(50):
    net(torch.ones(1, 3))
child = os.fork()
if child == 0:
    nn.Sequential(nn.Tanh())(torch.ones(1, 3))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(tap.stat(Stat.NEXT_SEQ), flush=True)
end()
for _ in range(50):
    net(torch.ones(1, 3))
os._exit(0)  # torch itself aborts where threads are in it at the interpreter's end
""",
        tmp_path,
    )
    # Calls that begin while Python is left alone have no module: those after stop_stacks().
    before = recording.records[recording.seq < int(recording.stdout)]
    begins = before[before["kind"] == Kind.CALL_BEGIN]
    linear = [begin for begin in begins if recording.text(begin["e"]) == "aten::linear"]
    assert len(linear) >= 50
    assert all(begin["b"] for begin in linear)


QUICK = (
    "made_and_gone", "parts_first", "generators", "step_within", "gpt_checkpoint_reentrant", "compiled",
    "scripted",
)  # fmt: skip
OTHERS = (
    "gpt", "gpt_checkpoint", "cnn", "autocast", "gan", "finetune", "lora", "moved", "accumulation",
    "lstm", "experts", "sparse", "penalty", "functional_gradients", "double_backward",
    "custom_function", "closure", "q_learning", "averaged", "ddp", "ddp_view_accumulate", "fsdp2",
    "fsdp2_accumulate", "trained_gpt", "sparse_experts", "layer_drop", "cells", "inference",
    "gradients_within", "lbfgs", "traced", "by_hand", "compiled_parts",
    "compiled_in_place", "functional_call", "raising", "replaced", "loss_modules", "hooked",
    "custom_backward", "deep", "hugging_face",
)  # fmt: skip


@pytest.mark.parametrize("training", long_but((*QUICK, *OTHERS), *QUICK[::2]))
def test_frames_and_hooks_say_the_same_of_every_call(training: str, tmp_path: Path) -> None:
    comparison = compared(training, tmp_path)
    assert comparison.num_within_modules > 5
    different = {said for said in comparison.differences if not _is_meant(training, *said)}
    assert different == set()


HOOKED = {
    ("aten::linear", "0.Linear", "Linear"),
    ("aten::add", "0", "Sequential"),
    ("BackwardHookFunction", "1", "Sequential"),
}
"""A module's own forward hooks run in its call; the global ones, which come first, have left it by then."""


def _is_meant(training: str, operator: str, by_frames: Said, by_hooks: Said) -> bool:
    """Whether the hooks are wrong: they see nothing of what is traced, or was compiled without them.

    Or know a module from before it was traced for the first time, where frames say that they do not.
    """
    if training in ("traced", "compiled_in_place"):
        return by_hooks == Said(module="", phase=Phase.OTHER) and by_frames.phase is Phase.FORWARD
    if training == "compiled_parts":
        return (by_frames.module, by_hooks.module, by_frames.phase) == ("", "1", by_hooks.phase)
    return training == "hooked" and (operator, by_frames.module, by_hooks.module) in HOOKED
