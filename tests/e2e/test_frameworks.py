"""Lightning and Ray Train themselves, in an environment of their own: every rank that they start is recorded.

Installed from the package index, so they run when asked for: ``make test-long``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from harmless_runs import SCRIPTS, preloaded, spools

PACKAGES = ("lightning==2.6.*", "ray==2.60.*", "pandas", "tensorboardX")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with the frameworks over this one's packages."""
    folder = tmp_path_factory.mktemp("frameworks")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (site,) = folder.glob("lib/*/site-packages")
    here = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}
    (site / "zz.pth").write_text("\n".join(sorted(here)))
    install = [str(folder / "bin/python"), "-m", "pip", "install", "-q", *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no frameworks from the package index: {done.stderr[-200:]}")
    return str(folder / "bin/python")


@pytest.mark.parametrize(
    "arguments", [["with_lightning.py", "ddp"], ["with_lightning.py", "ddp_spawn"], ["with_ray.py"]]
)
def test_both_ranks_are_recorded(arguments: list[str], python: str, tmp_path: Path) -> None:
    script, *rest = arguments
    done = preloaded([python, str(SCRIPTS / script), *rest], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rankmem: " not in done.stderr
    found = spools(tmp_path)
    assert [(spool.name[:3], spool.lost, spool.steps) for spool in found] == [("0-0", 0, 3), ("0-1", 0, 3)]
    for path in (tmp_path / "spool").glob("*/*-*-*/meta.json"):
        assert json.loads(path.read_text())["rank"]["world_size"] == 2
    assert list((tmp_path / "spool").glob("*/candidate-*")) == []
