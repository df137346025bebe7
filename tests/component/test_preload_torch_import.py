"""The hook on ``import torch``, tried on a package of that name that is made of nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PRELUDE = """
import sys
from rankmem_agent.preload import torch_import
called = []
torch_import.after_import(lambda: called.append(sys.modules["torch"].value))
"""


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import torch.part\nvalue = __spec__.loader.get_filename()\n")
    (tmp_path / "torch/part.py").write_text("")
    return tmp_path


def _run(code: str, path: Path) -> str:
    """What the program prints; it must end well and say nothing on stderr."""
    repository = Path(__file__).parents[2]
    paths = [str(path), str(repository / "agent"), str(repository / "protos")]
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_the_callback_runs_once_after_the_whole_module(fake_torch: Path) -> None:
    code = """
    import torch, torch.part
    import torch
    print(len(called), called[0] == torch.__file__, len([f for f in sys.meta_path if "rankmem" in repr(f)]))
    """
    assert _run(code, fake_torch) == "1 True 0"


def test_spec_and_loader_are_the_genuine_ones(fake_torch: Path) -> None:
    code = """
    import torch, torch.part
    loader = torch.__spec__.loader
    same_type = type(loader) is type(torch.part.__spec__.loader)
    print(same_type, loader is torch.__loader__, "exec_module" in vars(loader))
    """
    assert _run(code, fake_torch) == "True True False"


def test_looking_for_torch_without_importing_it_calls_nothing(fake_torch: Path) -> None:
    code = """
    import importlib.util
    print(importlib.util.find_spec("torch") is not None, called, "torch" in sys.modules)
    import torch
    print(len(called))
    """
    assert _run(code, fake_torch) == "True [] False\n1"


def test_a_torch_that_fails_to_import_fails_as_without_us_and_may_succeed_later(fake_torch: Path) -> None:
    package = fake_torch / "torch/__init__.py"
    package.write_text(
        "import os\nif 'BROKEN' in os.environ: raise ImportError('libtorch is missing')\nvalue = 1\n"
    )
    code = """
    import os
    os.environ["BROKEN"] = "1"
    try:
        import torch
    except ImportError as error:
        print(error, "torch" in sys.modules, called)
    del os.environ["BROKEN"]
    import torch
    print(called)
    """
    assert _run(code, fake_torch) == "libtorch is missing False []\n[1]"


def test_without_a_torch_the_import_fails_as_without_us(tmp_path: Path) -> None:
    code = """
    sys.path[:] = [p for p in sys.path if "site-packages" not in p]
    try:
        import torch
    except ModuleNotFoundError as error:
        print(error, called)
    """
    assert _run(code, tmp_path) == "No module named 'torch' []"


def test_threads_that_import_at_once_see_torch_after_the_callback(fake_torch: Path) -> None:
    code = """
    import threading
    start = threading.Barrier(8)
    seen = []
    def load():
        start.wait()
        import torch
        seen.append(len(called))
    threads = [threading.Thread(target=load) for _ in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print(seen)
    """
    assert _run(code, fake_torch) == str([1] * 8)


def test_a_forked_child_that_imports_torch_calls_back_for_itself(fake_torch: Path) -> None:
    code = """
    import os
    child = os.fork()
    import torch
    if child == 0:
        os._exit(len(called))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(called))
    """
    assert _run(code, fake_torch) == "1 1"


def test_torch_from_a_zip_file_is_followed_too(
    fake_torch: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import zipfile

    archive = tmp_path_factory.mktemp("zip") / "torch.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("torch/__init__.py", "import torch.part\nvalue = 7\n")
        file.writestr("torch/part.py", "")
    code = """
    import torch
    print(called, type(torch.__spec__.loader).__name__)
    """
    assert _run(code, archive) == "[7] zipimporter"


def test_a_torch_that_cannot_be_loaded_gives_the_traceback_that_it_gives_without_us(fake_torch: Path) -> None:
    (fake_torch / "torch/part.py").write_text("raise OSError('libcudart.so: cannot open')\n")
    code = """
    import traceback
    def told():
        try:
            import torch
        except OSError:
            return traceback.format_exc()
    ours = told()
    sys.meta_path[:] = [each for each in sys.meta_path if "rankmem" not in repr(each)]
    print(ours == told(), "rankmem" in ours, ours.count("File"))
    """
    assert _run(code, fake_torch) == "True False 3"
