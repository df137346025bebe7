"""Full disks, each a small tmpfs of the test's own: see full_disk.py for what is expected of each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.full_disk import SCENARIOS
from faults.scene import TESTS
from repetitions import long_but

ALONE = ("unshare", "--map-root-user", "--mount")
MOUNT = 'mount -t tmpfs tmpfs "$1"'


def can_mount(folder: Path) -> bool:
    """Whether this kernel lets us have mounts of our own."""
    tried = subprocess.run((*ALONE, "sh", "-c", MOUNT, "sh", str(folder)), capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.parametrize(
    "scenario", long_but(SCENARIOS, "spool_full", "database_full_and_killed", "database_flaps", "read_only")
)
def test_a_full_disk_costs_what_the_database_says_and_no_more(tmp_path: Path, scenario: str) -> None:
    run(scenario, tmp_path, fills=12, timeout_s=250)


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_two_hundred_fills_end_nothing(tmp_path: Path) -> None:
    run("database_flaps", tmp_path, fills=212, timeout_s=1900)


def run(scenario: str, tmp_path: Path, *, fills: int, timeout_s: float) -> None:
    if not can_mount(tmp_path):
        pytest.skip("this kernel lets nobody but root mount a tmpfs")
    path = Path(__file__).with_name("full_disk.py")
    done = subprocess.run(
        (*ALONE, sys.executable, str(path), scenario, str(tmp_path)),
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]), "RANKMEM_FILLS": str(fills)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
