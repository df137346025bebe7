"""Every minor release of torch from 2.6 to the newest: does the tap build, load and record exactly?

``make matrix`` (some minutes and about 1 GB of download a release, one at a time): for each release a virtual
environment of its own, torch from the package registry, the tap built against it, and scripts in processes of
their own: a training with storages of all kinds held against torch.profiler event by event, with both ways of
sharing memory; and a training with device meshes recorded by the whole agent with its hooks, beside the same
without; and the self test of ``rankmem doctor``. Prints a Markdown table, and with ``--write`` puts it into
docs/versions.md.

Where the registry has no CPU build of a release, its CUDA build is imported with stand-ins for CUDA's own
libraries (matrix_stand_ins); the tap is then built with its CUDA side too, which nothing runs here.

``make taps`` (``--keep-taps``) keeps what was built, for ``make dist`` to put into the wheel.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import matrix_stand_ins
from rankmem_agent.spool.layout import Kind
from rankmem_agent.tap import prebuilt
from storage_scripts import DIRECT, MAPPED, STEPS
from tap_kineto import compare, profiled
from tap_process import Recording, read_spool, record_process

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "versions.md"
OLDEST: Final = (2, 6)
BEGIN: Final = "<!-- made by tests/tools/matrix.py: begin -->"
END: Final = "<!-- made by tests/tools/matrix.py: end -->"
HEAD: Final = (
    "| torch | Python | built for | loads | sees of CPU memory | events equal torch.profiler's | hooks "
    "| reads from frames |\n|---|---|---|---|---|---|---|---|"
)
_NOT_NEEDED: Final = re.compile(r"^(nvidia|cuda|triton|pytorch-triton|setuptools)")
_TIMEOUT_S: Final = 900
_HOOKED: Final = """
import os, time, torch, torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
torch.manual_seed(0)
dist.init_process_group("gloo", init_method="file://" + os.environ["MATRIX_STORE"], rank=0, world_size=1)
print(init_device_mesh("cpu", (1,), mesh_dim_names=("dp",)).size())
print(DeviceMesh("cpu", mesh=torch.arange(1)).size())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item().hex())
time.sleep(0.1)  # or gloo may hang: docs/launchers.md
dist.destroy_process_group()
"""
_FACTS: Final = """
import json, sys, torch
from rankmem_agent.tap.build import ensure_built
built = ensure_built()
print(json.dumps([torch.__version__, "cpu and cuda" if built.has_cuda else "cpu"]))
"""


@dataclass(slots=True, kw_only=True)
class Result:
    """A row of the table; a cell that was not come to is empty."""

    release: str
    python: str
    cells: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)

    def row(self) -> str:
        """The row as Markdown."""
        cells = [*self.cells, *[""] * (6 - len(self.cells))]
        return f"| {self.release} | {self.python} | {' | '.join(cells)} |"


def releases() -> list[str]:
    """The newest patch of each minor release from OLDEST on, oldest first."""
    said = _pip(["index", "versions", "torch"])
    listed = re.search(r"Available versions: (.+)", said)
    newest: dict[tuple[int, int], tuple[int, str]] = {}
    for name in (listed.group(1) if listed else "").split(", "):
        numbers = re.match(r"(\d+)\.(\d+)\.(\d+)(\+cpu)?$", name)
        if numbers is None:
            continue
        minor, patch = (int(numbers[1]), int(numbers[2])), int(numbers[3])
        if minor >= OLDEST and (patch, name) > newest.get(minor, (-1, "")):  # 2.13.0+cpu before 2.13.0
            newest[minor] = (patch, name)
    return [name for _, (_, name) in sorted(newest.items())]


def examine(release: str, python: str, folder: Path) -> Result:
    """Everything about one release; what fails ends it with the cells so far and what was said."""
    version = subprocess.run(
        [python, "-c", "import platform; print(platform.python_version())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    result = Result(release=release, python=version)
    try:
        own_python = _install(release, python, folder / "venv")
        for cell in _checked(own_python, folder, result):
            result.cells.append(cell)
    except (subprocess.SubprocessError, RuntimeError, AssertionError) as error:
        said = getattr(error, "stderr", "") or str(error)
        result.differs.append(_last_lines(said))
        result.cells.append("**no**")
    return result


def _install(release: str, python: str, venv: Path) -> str:
    subprocess.run([python, "-m", "venv", "--without-pip", str(venv)], check=True)
    own_python = str(venv / "bin" / "python")
    _pip(["--python", own_python, "install", "--no-compile", "--no-deps", f"torch=={release}"])
    (site,) = (venv / "lib").glob("python*/site-packages")
    needed = [*_pure_dependencies(site), "numpy"]
    stand_ins = matrix_stand_ins.provide(site / "torch", platform.machine())
    cuda = re.search(r"libcudart\.so\.(\d+)", " ".join(stand_ins))
    if cuda:  # its headers, for the tap's CUDA side
        major = int(cuda[1])
        needed.append("nvidia-cuda-runtime-cu12" if major == 12 else f"nvidia-cuda-runtime=={major}.*")
    _pip(["--python", own_python, "install", "--no-compile", *needed])
    return own_python


def _pure_dependencies(site: Path) -> Iterator[str]:
    (metadata,) = site.glob("torch-*.dist-info/METADATA")
    for line in metadata.read_text().splitlines():
        if line.startswith("Requires-Dist: ") and "extra ==" not in line:
            requirement = line.removeprefix("Requires-Dist: ")
            if not _NOT_NEEDED.match(requirement):
                yield requirement


def _checked(python: str, folder: Path, result: Result) -> Iterator[str]:
    """The cells, in order."""
    release, built_for = json.loads(_run(python, _FACTS, folder).splitlines()[-1])
    result.release = release
    yield built_for
    recording, equal = _exactness(python, folder, result, "file_descriptor")
    yield "yes"
    sees = int(recording.stdout.split()[-1])
    yield "all" if sees == 7 else f"**{sees} of 7**"
    _, also = _exactness(python, folder, result, "file_system")
    yield f"{equal}; {also}"
    yield _hooks(python, folder, result)
    yield _by_frames(python, folder)


def _exactness(python: str, folder: Path, result: Result, strategy: str) -> tuple[Recording, str]:
    own = folder / strategy
    own.mkdir()
    body = DIRECT + STEPS + MAPPED.format(strategy=strategy)
    script = profiled(body) + "print(int(tap.cpu_sees()))\n"
    recording = record_process(script, own, python=python)
    if recording.returncode != 0:
        raise RuntimeError(recording.stderr)
    compared = compare(recording, own / "trace.json")
    if difference := compared.difference():
        result.differs.append(f"{strategy}: {difference}")
        return recording, "**no**"
    return recording, f"{len(compared.ours)} of {len(compared.theirs)}"


def _hooks(python: str, folder: Path, result: Result) -> str:
    """Whether the agent with all its hooks leaves a training as it is, and sees steps, modules and meshes."""
    script = folder / "hooked.py"
    script.write_text(_HOOKED)
    spools = folder / "spools"
    plain = _start([python, str(script)], folder / "store-plain", {})
    env = {"RANKMEM_SPOOL_DIR": str(spools), "RANKMEM_DEVICES": "cpu", "RANKMEM_DRAIN_S": "0"}
    hooked = _start([python, "-m", "rankmem_agent", str(script)], folder / "store-hooked", env)
    if plain.returncode != 0:
        raise RuntimeError(plain.stderr)
    if (hooked.returncode, hooked.stdout) != (0, plain.stdout):
        result.differs.append(f"with the agent: {_last_lines(hooked.stderr) or hooked.stdout}")
        return "**no**"
    (meta,) = spools.glob("*/*/meta.json")
    seen = read_spool(meta.parent, hooked)
    modules = {seen.text(begin["b"]) for begin in seen.of(Kind.CALL_BEGIN) if begin["b"]}
    counts = (len(seen.of(Kind.STEP)), len(modules), len(seen.of(Kind.WEIGHT)), len(seen.of(Kind.NOTE)))
    if counts[0] != 3 or 0 in counts:
        result.differs.append("steps, modules, weights, notes: " + ", ".join(map(str, counts)))
        return "**no**"
    return "yes"


def _by_frames(python: str, folder: Path) -> str:
    """What is read from this Python's own frames, without the GIL or hooks of modules."""
    own = folder / "self-test"
    own.mkdir()
    command = [python, "-m", "rankmem_agent.tap.self_test", str(own), "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    found = json.loads(done.stdout)
    read = {"stacks": found["frames_known"], "modules": found["modules_followed"]}
    return " and ".join(name for name, is_read in read.items() if is_read) or "nothing"


def _start(command: list[str], store: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **env, "MATRIX_STORE": str(store)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def _run(python: str, script: str, folder: Path) -> str:
    path = folder / "run.py"
    path.write_text(script)
    done = subprocess.run([python, str(path)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout


def _pip(arguments: list[str]) -> str:
    # A machine's constraints may hold torch below its newest release.
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--no-cache-dir", *arguments],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=environment,
    )  # fmt: skip
    return done.stdout


def _last_lines(said: str) -> str:
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    return " / ".join(lines[-2:])[:400]


def table(results: list[Result]) -> str:
    """The table, and below it what differs."""
    lines = [HEAD, *(result.row() for result in results)]
    return "\n".join([*lines, "", *_notes(results)]) + "\n"


def _notes(results: list[Result]) -> list[str]:
    return [f"- torch {result.release}: {said}" for result in results for said in result.differs]


def write(results: list[Result]) -> None:
    """Put the rows between the page's marks; what this run did not look at stays as it was."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    table_before, after = rest.split(END)
    rows = {_key(line): line for line in table_before.splitlines() if line.startswith("| 2.")}
    rows |= {_key(result.row()): result.row() for result in results}
    in_order = [rows[key] for key in sorted(rows, key=lambda key: [_numbers(name) for name in key])]
    lines = [HEAD, *in_order, *(["", *_notes(results)] if _notes(results) else [])]
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


def _key(row: str) -> tuple[str, str]:
    """The releases of torch and Python of a row."""
    _, release, python, *_ = (cell.strip() for cell in row.split("|"))
    return release, python


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def keep_taps(cache: Path) -> None:
    """Puts the taps of a cache where a wheel takes them from, under names that leave the compiler out."""
    prebuilt.FOLDER.mkdir(exist_ok=True)
    for built in cache.glob("tap-*.so"):
        key = built.stem.removeprefix("tap-").partition("-")[0]
        kept = shutil.copy(built, prebuilt.FOLDER / prebuilt.file_name(key))
        subprocess.run(["strip", "--strip-debug", kept], check=True, timeout=_TIMEOUT_S)
        os.chmod(kept, 0o644)


def main() -> int:
    """Returns 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("releases", nargs="*", help="default: the newest patch of each minor release")
    parser.add_argument("--python", action="append", help="an interpreter; default: this one")
    parser.add_argument("--write", action="store_true", help="put the table into docs/versions.md")
    parser.add_argument("--keep-taps", action="store_true", help="put the taps that passed into the wheel")
    options = parser.parse_args()
    results = []
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / name) for name in ("agent", "protos"))
    for python in options.python or [sys.executable]:
        for release in options.releases or releases():
            folder = Path(tempfile.mkdtemp(prefix="rankmem-matrix-"))
            os.environ["RANKMEM_TAP_CACHE"] = str(folder / "cache")
            try:
                result = examine(release, python, folder)
                if options.keep_taps and not result.differs:
                    keep_taps(folder / "cache")
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            results.append(result)
            print(result.row(), *result.differs, sep="\n", flush=True)
    print("\n" + table(results))
    if options.write:
        write(results)
    return int(any(result.differs for result in results))


if __name__ == "__main__":
    sys.exit(main())
