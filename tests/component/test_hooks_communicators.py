"""What NCCL's communicators hold: asked of groups that stand in for those of torch 2.14."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hook_recorder import Recorded
from rankmem_agent.hooks.communicators import INTERVAL_S, Communicators
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.spool.layout import DeviceType, Kind

MIB = 1 << 20


class DistBackendError(RuntimeError):
    """torch's."""


@dataclass(eq=False)
class Group:
    """A process group whose communicator is asked about; as ProcessGroupNCCL answers."""

    group_desc: str = "undefined"
    stats: dict[str, int] | None = None
    fails: type[Exception] = RuntimeError
    bound_device_id: Any = None
    split_from: Any = None
    split_share: int = 0
    is_ready: bool = True
    asked: int = 0

    def _get_backend(self, device: str) -> Group:
        assert device == "cuda"
        return self

    @property
    def options(self) -> SimpleNamespace:
        return SimpleNamespace(
            split_from=self.split_from, config=SimpleNamespace(split_share=self.split_share)
        )

    def _is_initialized(self) -> bool:
        return self.is_ready

    def memory_stats(self) -> dict[str, int]:
        assert self.is_ready, "torch would warn that it guesses the device"
        self.asked += 1
        if self.stats is None:
            raise self.fails("no communicator")
        return self.stats


def holding(total: int, persist: int = 0, *, suspended: int = 0) -> dict[str, int]:
    return {"total": total, "persist": persist, "suspend": total - persist, "suspended": suspended}


@dataclass
class Job:
    """A program's groups, and what is recorded of them."""

    recorded: Recorded = field(default_factory=Recorded)
    world: Any = field(default_factory=lambda: SimpleNamespace(pg_names={}, pg_backend_config={}))
    backend: Any = Group
    now_s: float = 100.0
    is_traced: bool = False

    def __post_init__(self) -> None:
        self.cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 3)
        torch = SimpleNamespace(
            distributed=SimpleNamespace(
                distributed_c10d=SimpleNamespace(_world=self.world), DistBackendError=DistBackendError
            ),
            _C=SimpleNamespace(_distributed_c10d=SimpleNamespace(Backend=self.backend)),
            cuda=self.cuda,
            device=str,
            version=SimpleNamespace(hip=None),
        )
        self.communicators = Communicators(
            self.recorded, lambda: self.is_traced, Guard(0), lambda: self.now_s
        )
        self.communicators.install(torch)

    def add(self, name: str, group: Group, config: str = "cuda:nccl") -> Group:
        self.world.pg_names[group] = name
        self.world.pg_backend_config[group] = config
        return group

    def remove(self, group: Group) -> None:
        del self.world.pg_names[group], self.world.pg_backend_config[group]

    def step(self) -> list[tuple[str, int, int]]:
        """A step ends, more than a second after the last: component, device and bytes of its records."""
        self.recorded.records.clear()
        self.now_s += INTERVAL_S
        self.communicators.look()
        found = []
        for kind, fields in self.recorded.records:
            assert (kind, fields["device_type"]) == (Kind.COMMUNICATOR, DeviceType.CUDA)
            component = self.recorded.strings[fields["component"]]
            found.append((component, fields["device_index"], fields["held_bytes"]))
        return found


@pytest.fixture
def job() -> Job:
    return Job()


def test_each_communicator_is_sampled_by_its_group_once_a_second(job: Job) -> None:
    world = job.add("0", Group("default_pg", holding(600 * MIB, 200 * MIB)))
    job.add("1", Group("mesh_tp", holding(80 * MIB), bound_device_id=SimpleNamespace(index=5)))
    assert job.step() == [("NCCL default_pg", 3, 600 * MIB), ("NCCL mesh_tp", 5, 80 * MIB)]
    job.communicators.look()
    assert world.asked == 1, "not before a second is over"
    world.stats = holding(700 * MIB)
    assert job.step()[0] == ("NCCL default_pg", 3, 700 * MIB)


def test_groups_of_one_description_and_those_without_go_by_torchs_name(job: Job) -> None:
    for name, described in (("4", "mesh_dp"), ("7", "mesh_dp"), ("9", "undefined")):
        job.add(name, Group(described, holding(MIB)))
    assert [component for component, _, _ in job.step()] == ["NCCL mesh_dp", "NCCL mesh_dp 7", "NCCL 9"]


def test_what_is_not_known_is_no_record_and_never_0(job: Job) -> None:
    job.add("0", Group("default_pg", is_ready=False))  # no communicator yet
    job.add("3", Group("mesh_pp"))  # none for the device, or an NCCL that cannot tell
    job.add("1", Group("unaccounted", holding(0)))  # NCCL without its memory manager
    gloo = job.add("2", Group("on the host", holding(MIB)), "cpu:gloo")
    assert job.step() == []
    assert gloo.asked == 0


def test_a_communicator_that_comes_later_is_found(job: Job) -> None:
    group = job.add("0", Group("default_pg", holding(MIB), is_ready=False))
    assert job.step() == []
    group.is_ready = True
    assert job.step() == [("NCCL default_pg", 3, MIB)]


def test_of_a_suspended_communicator_only_what_stays_is_held(job: Job) -> None:
    group = job.add("0", Group("default_pg", holding(600 * MIB, 0)))
    job.step()
    group.stats = holding(600 * MIB, 0, suspended=1)
    assert job.step() == [("NCCL default_pg", 3, 0)]
    group.stats = holding(600 * MIB, 50 * MIB, suspended=1)
    assert job.step() == [("NCCL default_pg", 3, 50 * MIB)]


def test_a_group_that_is_gone_holds_nothing_from_then_on_and_is_said_once(job: Job) -> None:
    group = job.add("1", Group("mesh_tp", holding(MIB)))
    job.step()
    job.remove(group)
    assert job.step() == [("NCCL mesh_tp", 3, 0)]
    assert job.step() == []


@pytest.mark.parametrize(("of_parent", "of_child", "num"), [(0, 0, 2), (1, 0, 1), (0, 1, 1)])
def test_bytes_that_two_communicators_share_are_counted_once(
    job: Job, of_parent: int, of_child: int, num: int
) -> None:
    parent = job.add("0", Group("default_pg", holding(MIB), split_share=of_parent))
    job.add("1", Group("split", holding(MIB), split_from=parent, split_share=of_child))
    assert len(job.step()) == num


def test_nccls_refusal_is_not_asked_for_again_and_breaks_nothing(job: Job) -> None:
    """Each request would have NCCL write a warning where NCCL_DEBUG asks for warnings."""
    refused = job.add("0", Group("default_pg", fails=DistBackendError))
    job.add("1", Group("mesh_tp", holding(MIB)))
    assert [job.step(), job.step()] == [[("NCCL mesh_tp", 3, MIB)]] * 2
    assert refused.asked == 1


def test_an_older_torch_and_a_process_without_cuda_are_not_asked(job: Job) -> None:
    older = Job(backend=object)
    groups = [each.add("0", Group("default_pg", holding(MIB))) for each in (older, job)]
    job.cuda.is_initialized = lambda: False
    assert older.step() == job.step() == []
    job.cuda.is_initialized = lambda: True
    job.is_traced = True
    assert job.step() == []
    assert [group.asked for group in groups] == [0, 0]


def test_a_failure_of_ours_switches_the_samples_off_and_is_reported(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    group = job.add("0", Group("default_pg", {"unheard_of": 1}))
    assert job.step() == job.step() == []
    assert group.asked == 1
    assert "bytes of communicators are no longer recorded: KeyError: 'total'" in capsys.readouterr().err
