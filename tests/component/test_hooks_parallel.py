"""Where a rank is in the job's dimensions: from meshes, Megatron, the environment, the user."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from hook_recorder import Recorded, step_hooks
from rankmem_agent.hooks.guard import Guard
from rankmem_agent.hooks.parallel import STEPS_LOOKED_AT, Parallel
from rankmem_agent.spool.layout import Kind

Start = Callable[[int, int], None]


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def parallel(recorded: Recorded) -> Iterator[Parallel]:
    genuine = DeviceMesh.__init__
    made = Parallel(recorded, torch.compiler.is_compiling, Guard(0), {})
    made.install(DeviceMesh)
    handles = step_hooks(recorded, Guard(0), parallel=made).install()
    yield made
    DeviceMesh.__init__ = genuine
    for handle in handles:
        handle.remove()


@pytest.fixture
def as_rank() -> Iterator[Start]:
    """Makes this process a rank of a job whose other ranks do not exist."""

    def start(rank: int, world_size: int) -> None:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    yield start
    torch.distributed.destroy_process_group()


def notes(recorded: Recorded) -> list[dict[str, Any]]:
    """The NOTE records' objects."""
    return [json.loads(recorded.strings[f["facts"]]) for kind, f in recorded.records if kind is Kind.NOTE]


def test_a_mesh_made_while_the_program_is_traced_is_read_at_the_next_step(
    recorded: Recorded, as_rank: Start
) -> None:
    as_rank(1, 2)
    is_traced = True
    parallel = Parallel(recorded, lambda: is_traced, Guard(0), {})
    parallel.mesh_made(mesh := init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
    parallel.at_step()
    assert notes(recorded) == []
    is_traced = False
    parallel.at_step()
    assert notes(recorded) == [{"rank": {"tp": mesh.get_local_rank()}}]


@pytest.mark.parametrize("how", ["first", "second", "keywords"])
def test_a_mesh_is_made_with_whatever_it_is_called_with(
    recorded: Recorded, parallel: Parallel, as_rank: Start, how: str
) -> None:
    as_rank(3, 4)
    ranks, names = torch.arange(4).view(2, 2), ("dp", "tp")
    match how:
        case "first":
            DeviceMesh("cpu", ranks, mesh_dim_names=names)
        case "second":
            DeviceMesh("cpu", mesh=ranks, mesh_dim_names=names)
        case "keywords":
            DeviceMesh(device_type="cpu", mesh=ranks, mesh_dim_names=names)
    assert notes(recorded) == [{"rank": {"dp": 1, "tp": 1}}]


def test_a_mesh_with_names_tells_the_coordinates(
    recorded: Recorded, parallel: Parallel, as_rank: Start
) -> None:
    as_rank(rank := 1 * 6 + 2 * 2 + 1, 12)
    mesh = init_device_mesh("cpu", (2, 3, 2), mesh_dim_names=("pp", "dp", "tp"))
    assert mesh.mesh[1, 2, 1] == rank  # by hand
    assert notes(recorded) == [{"rank": {"pp": 1, "dp": 2, "tp": 1}}]


def test_dimensions_that_make_one_up_count_in_the_meshs_order(
    recorded: Recorded, parallel: Parallel, as_rank: Start
) -> None:
    as_rank(5, 8)
    init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    assert notes(recorded) == [{"rank": {"dp": 2, "tp": 1}}]  # 5 = 1 0 1 in twos: dp is 1 0


def test_a_mesh_that_has_a_dimension_whole_wins_over_its_parts(
    recorded: Recorded, parallel: Parallel, as_rank: Start
) -> None:
    as_rank(5, 8)
    init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    assert notes(recorded)[-1] == {"rank": {"dp": 2, "tp": 1}}


def test_a_slice_of_a_mesh_says_the_same_and_a_mesh_without_names_nothing(
    recorded: Recorded, parallel: Parallel, as_rank: Start
) -> None:
    as_rank(3, 4)
    init_device_mesh("cpu", (4,))
    assert notes(recorded) == []
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    assert mesh["cp"].get_local_rank() == 1
    assert notes(recorded) == [{"rank": {"dp": 1, "cp": 1}}]


def test_a_rank_that_is_not_in_a_mesh_learns_nothing_from_it(
    recorded: Recorded, parallel: Parallel, as_rank: Start
) -> None:
    as_rank(3, 4)
    DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",))
    assert notes(recorded) == []


def test_megatrons_ranks_are_learned_at_the_first_steps(
    recorded: Recorded, parallel: Parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmade() -> int:
        raise AssertionError("expert model parallel group is not initialized")

    state: Any = types.ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: True
    state.get_data_parallel_rank = lambda: 3
    state.get_tensor_model_parallel_rank = lambda: 1
    state.get_expert_model_parallel_rank = unmade
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.step()
    assert notes(recorded) == []
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    optimizer.step()
    optimizer.step()
    assert notes(recorded) == [{"rank": {"dp": 3, "tp": 1}}]
    state.get_data_parallel_rank = unmade
    for _ in range(STEPS_LOOKED_AT):
        optimizer.step()
    assert len(notes(recorded)) == 1


def test_what_the_user_tells_wins_and_what_he_does_not_tell_stays(recorded: Recorded, as_rank: Start) -> None:
    made = Parallel(recorded, torch.compiler.is_compiling, Guard(0), {"tp": 7, "pp": 4})
    made.set_by_user({"dp": 9, "tp": 8})
    as_rank(1, 4)
    made.mesh_made(init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "tp")))
    assert notes(recorded) == [
        {"rank": {"tp": 7, "pp": 4}},
        {"rank": {"tp": 8, "pp": 4, "dp": 9}},
        {"rank": {"ep": 0, "tp": 8, "pp": 4, "dp": 9}},
    ]


def test_a_mesh_that_cannot_be_read_switches_the_coordinates_off_and_is_made(
    recorded: Recorded, parallel: Parallel, as_rank: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    as_rank(0, 2)

    class Odd(DeviceMesh):
        def get_coordinate(self) -> Any:
            raise AttributeError("moved")

    assert Odd("cpu", [0, 1], mesh_dim_names=("tp",)).ndim == 1
    assert "parallel dimensions are no longer recorded: AttributeError: moved" in capsys.readouterr().err


def test_a_place_that_cannot_be_is_left_out_and_said_once(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Parallel(recorded, lambda: False, Guard(0), {"dp": 99_999_999_999, "tp": 1})
    made.set_by_user({"dp": 10**30, "pp": 2})
    assert notes(recorded)[-1] == {"rank": {"tp": 1, "pp": 2}}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "dp=99999999999 is not a place" in said[0]
