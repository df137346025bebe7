"""The wheel, installed where there is nothing else: what a user gets who has never seen the repository.

The environment is empty and its packages come from the index, as a user's do; the torch is the one of the
tests, linked in with what it needs and nothing else of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 600


def _built(target: str, source: Path, out: Path) -> Path:
    pytest.importorskip("hatchling", reason="builds what users get; in the extra dev")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built("wheel", ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, what it requires, and torch."""
    folder = tmp_path_factory.mktemp("user")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    done = subprocess.run(
        [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--retries=1", wheel],
        capture_output=True, text=True, timeout=INSTALL_S, check=False, env=_environment(),
    )  # fmt: skip
    if "No matching distribution" in done.stderr and "rankmem" not in done.stderr.split("No matching")[1]:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def with_torch(environment: Path) -> Path:
    """The same, after torch was linked in."""
    (packages,) = environment.parent.glob("lib/python3*/site-packages")
    alone = environment.parent / "torch_alone"
    alone.mkdir()
    for name in sorted({path.parts[0] for of in _closure("torch") for path in of.files or ()} - {".."}):
        if not (packages / name).exists():
            (alone / name).symlink_to(Path(str(distribution("torch").locate_file(name))))
    (packages / "torch_alone.pth").write_text(f"{alone}\n")
    return environment


def _closure(name: str) -> Iterator[Distribution]:
    """A distribution and all that it requires here."""
    seen, waiting = set[str](), [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        found = distribution(current)
        yield found
        always = (each for each in found.requires or () if "extra ==" not in each)
        named = (re.split(r"[^A-Za-z0-9._-]", each)[0] for each in always)
        waiting += [each for each in named if _is_installed(each)]  # not what other systems or GPUs need


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _environment() -> dict[str, str]:
    """Ours, without what would lead to the repository."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RANKMEM", "PYTEST"))
    }
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _run(command: list[str | Path], folder: Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_the_wheel_has_what_runs_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        tops = {name.split("/")[0] for name in opened.namelist()}
    packages = {"rankmem", "rankmem_agent", "rankmem_aggregator", "rankmem_cli", "rankmem_imports"}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        *packages, "rankmem_protos", "rankmem_ship",
    }  # fmt: skip


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    for name in ("sdist", "source", "dist"):
        (tmp_path / name).mkdir()
    packed = _built("sdist", ROOT, tmp_path / "sdist")
    subprocess.run(["tar", "-xf", packed, "-C", tmp_path / "source"], check=True)
    (source,) = (tmp_path / "source").iterdir()
    with (
        zipfile.ZipFile(_built("wheel", source, tmp_path / "dist")) as ours,
        zipfile.ZipFile(wheel) as direct,
    ):
        files = {name: direct.read(name) for name in direct.namelist()}
        assert {name: ours.read(name) for name in ours.namelist()} == files


def test_it_brings_no_torch_and_no_web_framework(environment: Path, tmp_path: Path) -> None:
    listed = json.loads(_run([environment / "pip", "list", "--format", "json"], tmp_path).stdout)
    assert {
        "torch",
        "starlette",
        "uvicorn",
        "deltalake",
        "matplotlib",
        "cryptography",
        "opentelemetry-sdk",
    }.isdisjoint(each["name"] for each in listed)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["page", "--db", "mem.duckdb"], "page"),
        (["peak", "--lake", "lake"], "lake"),
        (["certs", "tls"], "certs"),
        (["serve", "--otlp", "http://127.0.0.1:4318"], "otlp"),
    ],
)
def test_a_command_that_needs_more_names_its_extra(
    environment: Path, tmp_path: Path, command: list[str], extra: str
) -> None:
    done = _run([environment / "rankmem", *command], tmp_path)
    assert done.returncode != 0
    assert f"pip install 'rankmem[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_runs(with_torch: Path, tmp_path: Path) -> None:
    done = _run([with_torch / "rankmem", "demo", "--ranks", "2", "--steps", "3"], tmp_path, INSTALL_S)
    assert done.returncode == 0, done.stderr
    asked = _run([with_torch / "rankmem", "peak", "--format", "json"], tmp_path)
    rows = json.loads(asked.stdout)
    assert sorted(row["rank"] for row in rows) == [0, 1]
    assert all(row["complete"] for row in rows)
    assert str(ROOT) not in done.stdout + done.stderr
