"""What the image holds: installed, pruned, and run without root on a root that is read-only."""

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
from pathlib import Path

import pytest

from main_job import RUN, call, environment

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 900
SIZE_MAX = 350 << 20
OF_A_LAKE = re.compile(r"deltalake|arro3|fsspec|deprecated|wrapt")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(INSTALL_S + 300),
    pytest.mark.skipif(not shutil.which("bwrap"), reason="needs Debian's bubblewrap"),
]


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment as the Containerfile makes it, with both extras."""
    folder = tmp_path_factory.mktemp("image") / "rankmem"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    command = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--retries=1", "--no-compile"]
    done = subprocess.run(
        [*command, f"{ROOT}[page,lake]"], capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python3*/site-packages")
    runpy.run_path(str(ROOT / "deploy/prune_installed.py"))["prune"](packages)
    subprocess.run(
        [folder / "bin/python", "-m", "compileall", "-q", folder / "lib"], check=False, timeout=300
    )
    return folder


def confined(pruned: Path, data: Path, *command: str) -> list[str]:
    """The command as a user that is not root; /mnt/data alone can be written to, and a /tmp of its own."""
    fences = ["bwrap", "--unshare-user", "--uid", "1000", "--gid", "1000", "--ro-bind", "/", "/"]
    fences += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/mnt", "--die-with-parent"]
    fences += [
        "--bind",
        str(data),
        "/mnt/data",
        "--ro-bind",
        str(pruned),
        str(pruned),
        "--chdir",
        "/mnt/data",
    ]
    return [
        *fences,
        "--setenv",
        "HOME",
        "/tmp",
        "--remount-ro",
        "/",
        str(pruned / "bin" / command[0]),
        *command[1:],
    ]


@contextmanager
def serving(pruned: Path, data: Path, *options: str) -> Iterator[tuple[str, str]]:
    """An aggregator of the pruned environment; its address and what it said."""
    command = confined(pruned, data, "rankmem", "serve", "--listen", "127.0.0.1:0", *options)
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


def asked(pruned: Path, data: Path, *question: str) -> list[dict[str, object]]:
    command = confined(pruned, data, "rankmem", *question, "--format", "json")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment(data)
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def train(folder: Path, address: str) -> None:
    """A training in the tests' own environment that ships to the pruned one."""
    script = Path(__file__).with_name("training_scripts") / "mlp.py"
    command = (*RUN, "--aggregator", address, "--", sys.executable, str(script))
    done = call(command, folder)
    assert done.returncode == 0, done.stderr


def test_what_is_left_is_small(pruned: Path) -> None:
    size = runpy.run_path(str(ROOT / "deploy/prune_installed.py"))["size_bytes"]
    (packages,) = pruned.glob("lib/python3*/site-packages")
    of_a_lake = sum(size(found) for found in packages.iterdir() if OF_A_LAKE.match(found.name))
    assert of_a_lake > 100 << 20
    assert size(pruned) - of_a_lake < SIZE_MAX


def test_a_pruned_aggregator_stores_and_answers_on_a_read_only_root(pruned: Path, tmp_path: Path) -> None:
    options = ("--db", "/mnt/data/m.duckdb", "--metrics", "127.0.0.1:0", "--page", "127.0.0.1:0")
    with serving(pruned, tmp_path, *options) as (address, said):
        train(tmp_path, address)
        there = ("--aggregator", address)
        assert [row["rank"] for row in asked(pruned, tmp_path, "ranks", *there)] == [0]
        assert asked(pruned, tmp_path, "peak", "--by", "module", *there)
        assert asked(pruned, tmp_path, "job-peak", *there)
        spilled = (
            "SELECT count(*) AS n FROM (SELECT hash(range) AS h, count(*) FROM range(1000000) GROUP BY 1)"
        )
        assert asked(pruned, tmp_path, "sql", spilled, *there) == [{"n": 1_000_000}]
        probe = ("python", "-m", "rankmem_aggregator.server.health_probe", address)
        assert subprocess.run(confined(pruned, tmp_path, *probe), check=False, timeout=60).returncode == 0
        metrics = re.search(r"http://\S+/metrics", said)
        assert metrics
        with urllib.request.urlopen(metrics[0], timeout=30) as reply:
            assert "rankmem_serving 1.0" in reply.read().decode()
    for name in ("curve.html", "rows.csv", "rows.parquet"):
        command = ("rankmem", "timeline", "--db", "m.duckdb", "--out", name)
        done = subprocess.run(
            confined(pruned, tmp_path, *command), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_pruned_aggregator_of_a_lake_stores_and_is_kept(pruned: Path, tmp_path: Path) -> None:
    with serving(pruned, tmp_path, "--lake", "/mnt/data/lake", "--lake-interval-s", "0.1") as (address, _):
        train(tmp_path, address)
    assert [row["rank"] for row in asked(pruned, tmp_path, "ranks", "--lake", "/mnt/data/lake")] == [0]
    for verb in (["prune", "--keep-days", "9999"], ["vacuum"], ["compact"]):
        command = confined(pruned, tmp_path, "rankmem", "lake", *verb, "--lake", "/mnt/data/lake")
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert [row["rank"] for row in asked(pruned, tmp_path, "ranks", "--lake", "/mnt/data/lake")] == [0]
