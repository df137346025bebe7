"""An environment of a test's own over this interpreter's packages, with more from the package index."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def environment_over(folder: Path) -> str:
    """Makes one in a folder; its interpreter, which finds what this one does."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (site,) = folder.glob("lib/*/site-packages")
    here = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}
    (site / "zz.pth").write_text("\n".join(sorted(here)))
    return str(folder / "bin/python")


def not_installed(python: str, *packages: str) -> str:
    """Installs packages, after options of pip; why that failed, empty: it did not."""
    command = [python, "-m", "pip", "install", "-q", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr[-200:] if done.returncode else ""
