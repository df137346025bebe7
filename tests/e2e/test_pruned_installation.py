"""What the image holds: Python, the libraries that are loaded and the pruned environment.

Run without root, on a read-only root that has nothing else.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from main_job import RUN, call, environment

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
INSTALL_S = 900
ENVIRONMENT_BYTES_MAX = 300_000_000
"""Without what a lake needs."""
REST_BYTES_MAX = 80_000_000
"""Python, its libraries, the C library: 50 MB of Debian's, 75 where Python was built with its symbols."""
OF_A_LAKE = re.compile(r"deltalake|arro3|fsspec|deprecated|wrapt")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(INSTALL_S + 300),
    pytest.mark.skipif(not shutil.which("bwrap"), reason="needs Debian's bubblewrap"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A folder that is an image's root, and where it has the environment."""

    root: Path
    environment: Path


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image's root as the Containerfile makes it, with both extras."""
    made = Image(
        root=tmp_path_factory.mktemp("image"), environment=tmp_path_factory.mktemp("built") / "rankmem"
    )
    folder = made.environment
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    command = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--retries=1", "--no-compile"]
    done = subprocess.run(
        [*command, f"{ROOT}[page,lake]"], capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python3*/site-packages")
    runpy.run_path(str(DEPLOY / "prune_installed.py"))["prune"](packages)
    subprocess.run(
        [folder / "bin/python", "-m", "compileall", "-q", folder / "lib"], check=False, timeout=300
    )
    runpy.run_path(str(DEPLOY / "runtime_root.py"))["make_root"](made.root, folder)
    shutil.copytree(folder, made.root / folder.relative_to("/"), symlinks=True)
    return made


def confined(image: Image, data: Path, *command: str) -> list[str]:
    """The command as a user that is not root, with the image alone for its files; /mnt and /dev/shm can be
    written to."""
    fences = ["bwrap", "--unshare-user", "--uid", "1000", "--gid", "1000", "--ro-bind", str(image.root), "/"]
    fences += ["--dev", "/dev", "--proc", "/proc", "--die-with-parent", "--bind", str(data), "/mnt"]
    fences += ["--setenv", "TMPDIR", "/dev/shm", "--setenv", "HOME", "/dev/shm", "--chdir", "/mnt"]
    fences += ["--remount-ro", "/"]
    return [*fences, str(image.environment / "bin" / command[0]), *command[1:]]


@contextmanager
def serving(image: Image, data: Path, *options: str) -> Iterator[tuple[str, str]]:
    """An aggregator of the image; its address and what it said."""
    command = confined(image, data, "rankmem", "serve", "--listen", "127.0.0.1:0", *options)
    awaited = ("listening on", "/metrics" if "--metrics" in options else "")
    with subprocess.Popen(command, env=environment(data), stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = ""
        try:
            while not all(word in said for word in awaited):
                line = running.stderr.readline()
                assert line, said
                said += line
            found = re.search(r"listening on (127\.0\.0\.1:\d+)", said)
            assert found
            yield found[1], said
        finally:
            for child in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGTERM)  # bwrap itself would kill it
            running.communicate(timeout=120)
    assert running.returncode == 0, said


def asked(image: Image, data: Path, *question: str) -> list[dict[str, object]]:
    command = confined(image, data, "rankmem", *question, "--format", "json")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment(data)
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def train(folder: Path, address: str) -> None:
    """A training in the tests' own environment that ships to the image's."""
    script = Path(__file__).with_name("training_scripts") / "mlp.py"
    command = (*RUN, "--aggregator", address, "--", sys.executable, str(script))
    done = call(command, folder)
    assert done.returncode == 0, done.stderr


def size_bytes(folder: Path) -> int:
    """Of all files below, as an image counts them."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_what_is_left_is_small(image: Image) -> None:
    (packages,) = image.environment.glob("lib/python3*/site-packages")
    of_a_lake = sum(size_bytes(found) for found in packages.iterdir() if OF_A_LAKE.match(found.name))
    assert of_a_lake > 100_000_000
    environment = size_bytes(image.environment)
    assert environment - of_a_lake < ENVIRONMENT_BYTES_MAX
    assert size_bytes(image.root) - environment < REST_BYTES_MAX


def test_an_aggregator_stores_and_answers_on_a_read_only_root(image: Image, tmp_path: Path) -> None:
    options = ("--db", "/mnt/m.duckdb", "--metrics", "127.0.0.1:0", "--page", "127.0.0.1:0")
    with serving(image, tmp_path, *options) as (address, said):
        train(tmp_path, address)
        there = ("--aggregator", address)
        assert [row["rank"] for row in asked(image, tmp_path, "ranks", *there)] == [0]
        assert asked(image, tmp_path, "peak", "--by", "module", *there)
        assert asked(image, tmp_path, "job-peak", *there)
        spilled = (
            "SELECT count(*) AS n FROM (SELECT hash(range) AS h, count(*) FROM range(1000000) GROUP BY 1)"
        )
        assert asked(image, tmp_path, "sql", spilled, *there) == [{"n": 1_000_000}]
        probe = ("python", "-m", "rankmem_aggregator.server.health_probe", address)
        assert subprocess.run(confined(image, tmp_path, *probe), check=False, timeout=60).returncode == 0
        metrics = re.search(r"http://\S+/metrics", said)
        assert metrics
        with urllib.request.urlopen(metrics[0], timeout=30) as reply:
            assert "rankmem_serving 1.0" in reply.read().decode()
    for name in ("curve.html", "rows.csv", "rows.parquet"):
        command = ("rankmem", "timeline", "--db", "m.duckdb", "--out", name)
        done = subprocess.run(
            confined(image, tmp_path, *command), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr


def test_an_aggregator_of_a_lake_stores_and_is_kept(image: Image, tmp_path: Path) -> None:
    with serving(image, tmp_path, "--lake", "/mnt/lake", "--lake-interval-s", "0.1") as (address, _):
        train(tmp_path, address)
    assert [row["rank"] for row in asked(image, tmp_path, "ranks", "--lake", "/mnt/lake")] == [0]
    for verb in (["prune", "--keep-days", "9999"], ["vacuum"], ["compact"]):
        command = confined(image, tmp_path, "rankmem", "lake", *verb, "--lake", "/mnt/lake")
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert [row["rank"] for row in asked(image, tmp_path, "ranks", "--lake", "/mnt/lake")] == [0]
