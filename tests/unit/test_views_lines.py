"""The line of a stack: the nearest frame of the project, whatever recorded it; by hand, a frame at a time."""

from __future__ import annotations

import duckdb
import pytest

from constructed import store_rows

pytestmark = pytest.mark.slow

Frame = tuple[str, int, str]

NATIVE: tuple[Frame, ...] = (
    ("??", 0, "torch::unwind::unwind()"),
    ("??", 0, "_start"),
    ("", 0, "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)"),
    ("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::malloc(void**, int)"),
    ("thread48.o", 0, "execute_native_thread_routine"),
    ("/usr/local/src/conda/python-3.12.3/Objects/call.c", 387, "PyCFunction_Call"),
    ("/usr/local/src/conda/python-3.12.3/Include/internal/pycore_ceval.h", 89, "_PyEval_EvalFrame"),
    ("/usr/include/c++/11/functional", 12, "std::invoke(void (*)())"),
    ("/opt/lib/libtorch_cpu.so.2", 0, "0x7f00deadbeef"),
    ("/home/me/project/kernels/fused.cu", 40, "launch"),
    ("", 0, "<built-in method linear of type object at 0x7f2c>"),
    ("", 0, "<built-in function len>"),
    ("??", 0, "<method 'to' of 'torch._C.TensorBase' objects>"),
    ("", 0, "nn.Module: Linear_0"),
    ("", 0, "??"),
    ("", 0, ""),
)
LIBRARY: tuple[Frame, ...] = (
    ("/opt/conda/envs/x/lib/python3.11/site-packages/torch/nn/functional.py", 7, "linear"),
    ("/usr/lib/python3/dist-packages/transformers/modeling_x.py", 410, "forward"),
    (".venv/lib/python3.12/site-packages/peft/tuner.py", 5, "forward"),
    (r"C:\Users\me\miniconda3\envs\x\Lib\site-packages\torch\nn\modules\linear.py", 5, "forward"),
    (r"C:\Users\me\AppData\Local\Programs\Python\Python310\lib\contextlib.py", 79, "inner"),
    ("/usr/lib/python3.10/contextlib.py", 79, "inner"),
    ("/home/me/.conda/envs/x/lib/python3.9/runpy.py", 87, "_run_code"),
    ("/opt/python/lib/python3.13t/threading.py", 990, "run"),
    ("/opt/app/python311.zip/copy.py", 128, "deepcopy"),
    ("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"),
    ("<frozen runpy>", 88, "_run_code"),
    ("<string>", 1, "<module>"),
    ("<eval_with_key>.5", 9, "forward"),
    ("torch/nn/modules/linear.py", 114, "forward"),
    ("torch_npu/contrib/transfer_to_npu.py", 12, "wrapper"),
    ("/workspace/pytorch/torch/nn/modules/linear.py", 114, "forward"),
    ("/opt/deps/torch/optim/adamw.py", 133, "step"),
    ("/tmp/torchinductor_me/ab/cab.py", 60, "call"),
    ("threading.py", 1002, "_bootstrap"),
    ("multiprocessing/process.py", 108, "run"),
    ("/opt/conda/bin/torchrun", 8, "<module>"),
    ("/home/me/tools/msmemscope/python/msmemscope/aten_collection.py", 174, "__torch_dispatch__"),
    ("/home/me/rankmem/agent/rankmem_agent/hooks/tags.py", 12, "tag"),
)
PROJECT: tuple[Frame, ...] = (
    ("train.py", 30, "main"),
    ("src/model.py", 410, "Model.forward"),
    ("/home/me/project/train.py", 30, "main"),
    ("/home/me/torch/train.py", 30, "main"),
    ("/home/me/torch/utils/models.py", 30, "build"),
    ("/workspace/Megatron-LM/megatron/core/layers.py", 30, "forward"),
    ("/usr/src/app/train.py", 30, "main"),
    (r"D:\work\lib\model.py", 30, "forward"),
    ("transformers/models/llama/modeling_llama.py", 410, "forward"),
    ("<ipython-input-3-0fa2>", 4, "<module>"),
    ("/tmp/ipykernel_7013/1187.py", 4, "<module>"),
    ("<stdin>", 1, "<module>"),
    ("/data/app.pyz/__main__.py", 3, "<module>"),
    ("src/queue.py", 3, "put"),
    ("tests/copy.py", 3, "test"),
    ("run/train", 3, "main"),
)


def lines_of(connection: duckdb.DuckDBPyConnection, *stacks: tuple[Frame, ...]) -> list[tuple[object, ...]]:
    """What the view says of each stack."""
    names = ("stack_id", "ordering", "file_path", "line_number", "function")
    store_rows(
        connection,
        "stack_frame",
        [
            dict(zip(names, (number, place, *frame), strict=True))
            for number, stack in enumerate(stacks)
            for place, frame in enumerate(stack)
        ],
    )
    return connection.execute("SELECT line, function, in_project FROM stack ORDER BY stack_id").fetchall()


@pytest.mark.parametrize("frame", [*NATIVE, *LIBRARY])
def test_the_line_is_the_projects_and_not_that_of_a_frame_within(
    database: duckdb.DuckDBPyConnection, frame: Frame
) -> None:
    outer = ("/home/me/project/train.py", 30, "main")
    assert lines_of(database, (frame, outer)) == [("/home/me/project/train.py:30", "main", True)]


@pytest.mark.parametrize("frame", PROJECT)
def test_the_nearest_frame_of_the_project_is_the_line(
    database: duckdb.DuckDBPyConnection, frame: Frame
) -> None:
    outer = ("/home/me/project/outer.py", 1, "main")
    assert lines_of(database, (*NATIVE, *LIBRARY, frame, outer)) == [
        (f"{frame[0]}:{frame[1]}", frame[2], True)
    ]


@pytest.mark.parametrize("frame", LIBRARY)
def test_without_a_frame_of_the_project_the_nearest_of_python_stands_in_brackets(
    database: duckdb.DuckDBPyConnection, frame: Frame
) -> None:
    outer = ("<frozen runpy>", 88, "_run_code")
    assert lines_of(database, (*NATIVE, frame, outer)) == [(f"[{frame[0]}:{frame[1]}]", frame[2], False)]


def test_a_stack_without_a_python_frame_has_no_line_and_all_its_frames(
    database: duckdb.DuckDBPyConnection,
) -> None:
    assert lines_of(database, NATIVE) == [(None, None, None)]
    [(frames,)] = database.execute("SELECT frames FROM stack").fetchall()
    assert len(frames) == len(NATIVE)


def test_of_a_job_that_kept_its_files_to_itself_the_line_is_a_function(
    database: duckdb.DuckDBPyConnection,
) -> None:
    inside, outside = ("", 0, "Model.forward"), ("<outside>", 0, "Linear.forward")
    assert lines_of(database, (outside, inside), (outside,)) == [
        ("Model.forward", "Model.forward", True),
        ("[Linear.forward]", "Linear.forward", False),
    ]


def test_stacks_that_differ_in_a_built_ins_address_alone_are_one_line(
    database: duckdb.DuckDBPyConnection,
) -> None:
    outer = ("model.py", 7, "forward")
    stacks = [(("", 0, f"<built-in method cat of type object at 0x{n:x}>"), outer) for n in range(3)]
    assert {line for line, _, _ in lines_of(database, *stacks)} == {"model.py:7"}
