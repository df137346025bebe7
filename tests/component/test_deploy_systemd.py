"""The units of deploy/: what systemd's own tools say of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = sorted(DEPLOY.glob("*.service"))
UNITS = [*SERVICES, *sorted(DEPLOY.glob("*.timer"))]
EXPOSURE_MAX = 2.0
pytestmark = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_its_exposure_is_low(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}"]
    done = subprocess.run([*command, str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"Overall exposure level for .*: ([\d.]+) ", done.stdout)
    assert found
    assert float(found[1]) <= EXPOSURE_MAX


def test_systemd_accepts_all_units(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rankmem").symlink_to(sys.executable)  # what a unit starts must be there
    for unit in UNITS:
        text = unit.read_text("utf-8").replace("/opt/rankmem", str(tmp_path))
        (tmp_path / unit.name.replace("@", "@7077")).write_text(text)
    made = sorted(str(path) for path in tmp_path.iterdir() if path.is_file())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *made],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
