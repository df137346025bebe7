"""Trainings by a CUDA build of torch under ``rankmem run``, on a device and an NCCL that are none.

torch, its allocator and its process groups are those of the wheel; memory is handed out, nothing is computed
and nothing communicated. See ``fake_cuda`` for the build that it takes.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

import matrix_stand_ins
from fake_cuda import FOLDER, WHY, trainable_dirs
from main_job import RANKMEM, call, rows

SCRIPTS = Path(__file__).parent / "training_scripts"
DEVICE_BYTES = 80 * 10**9
MIB = 1 << 20
OLDEST_WITH_FIGURES = (2, 14)
TORCH = trainable_dirs()
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not TORCH, reason=f"{WHY}: one for CUDA 13 and this Python"),
]


def trained(
    script: str, *options: str, torch_dir: Path, folder: Path, first: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Records a training; ``first``: libraries in place of those that return 0 alone."""
    libraries = folder / "stand_ins"
    libraries.mkdir()
    device = matrix_stand_ins.provide_device(torch_dir, libraries, platform.machine(), DEVICE_BYTES)
    device["LD_PRELOAD"] = ":".join([*map(str, first), device["LD_PRELOAD"]])
    command = (*RANKMEM, "run", "--no-diagnose", *options, "--", sys.executable)
    done = call(
        (*command, str(SCRIPTS / script)), folder, timeout_s=500, PYTHONPATH=str(torch_dir.parent), **device
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("torch_dir", trainable_dirs(OLDEST_WITH_FIGURES), ids=str)
def test_bytes_of_each_communicator_are_those_that_nccl_reports(torch_dir: Path, tmp_path: Path) -> None:
    nccl = tmp_path / "fake_nccl.so"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", nccl, FOLDER / "fake_nccl.c"], check=True)
    done = trained("with_nccl.py", torch_dir=torch_dir, folder=tmp_path, first=(nccl,))
    assert "Guessing device" not in done.stderr, "torch warns where it is asked too early"
    found = rows(
        tmp_path, "sql",
        "SELECT component, device, reserved_bytes, min(seq) AS seq FROM component_sample "
        "WHERE component <> 'pinned_host' GROUP BY ALL ORDER BY component, seq",
    )  # fmt: skip
    assert [(row["component"], row["device"], row["reserved_bytes"]) for row in found] == [
        ("NCCL default_pg", "cuda:0", 256 * MIB),
        ("NCCL mesh_tp", "cuda:0", 512 * MIB),
        ("NCCL mesh_tp", "cuda:0", 128 * MIB),
        ("NCCL mesh_tp", "cuda:0", 0),
    ]
    (rank,) = rows(tmp_path, "sql", "SELECT complete, not_recorded FROM rank_overview")
    assert tuple(rank.values()) == (True, "")


@pytest.mark.parametrize("torch_dir", TORCH, ids=str)
def test_a_training_on_the_cpu_beside_a_gpu_is_recorded_to_its_end(torch_dir: Path, tmp_path: Path) -> None:
    """From torch 2.14 on its optimizers initialise CUDA, without allocating anything there."""
    trained("mlp.py", torch_dir=torch_dir, folder=tmp_path)
    recorded = rows(tmp_path, "sql", "SELECT device, source FROM device_info ORDER BY ALL")
    assert [tuple(row.values()) for row in recorded] == [("cpu", "tap")]
    steps = rows(tmp_path, "sql", "SELECT step FROM step INTERSECT SELECT step FROM allocation ORDER BY step")
    assert len(steps) > 2
    assert steps == rows(tmp_path, "sql", "SELECT step FROM step ORDER BY step")


@pytest.mark.parametrize("torch_dir", TORCH, ids=str)
def test_an_out_of_memory_on_a_gpu_that_auto_has_in_summary_has_its_place_and_full_steps_after_it(
    torch_dir: Path, tmp_path: Path
) -> None:
    script = "out_of_memory_in_summary.py"
    done = trained(script, "--detail", "auto", torch_dir=torch_dir, folder=tmp_path)
    assert "out of memory" in done.stdout
    changes = rows(tmp_path, "sql", "SELECT outcome, detail, step FROM control_change ORDER BY seq")
    assert [tuple(row.values()) for row in changes] == [
        ("auto", "summary", 8), ("auto", "full", 16), ("auto", "summary", 20)
    ]  # fmt: skip
    (oom,) = rows(
        tmp_path,
        "sql",
        "SELECT device, o.operator, module, phase, step, file_path, line_number FROM oom AS o "
        "LEFT JOIN operator_call AS c USING (session_id, attempt, rank, call_id) "
        "LEFT JOIN stack_frame AS f ON f.stack_id = o.stack_id AND f.ordering = 0",
    )
    assert Path(oom.pop("file_path")).name == script
    line = (SCRIPTS / script).read_text().splitlines()[int(oom.pop("line_number")) - 1]
    assert "torch.empty(num" in line
    assert tuple(oom.values()) == ("cuda:0", "aten::empty", "Grows", None, 15)
    named = rows(
        tmp_path, "sql",
        "SELECT DISTINCT step FROM allocation WHERE device = 'cuda:0' AND operator IS NOT NULL "
        "AND step IS NOT NULL ORDER BY step",
    )  # fmt: skip
    assert [row["step"] for row in named] == [*range(8), *range(16, 20)]
