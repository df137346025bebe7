"""What a result was measured on: device, driver, versions, command, date.

Stage: outside the way of the data. Loads no torch: its version and CUDA's are read from its files.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any, Final

from harness import machine

PACKAGES: Final = ("torch", "triton", "duckdb", "grpcio", "protobuf", "pyarrow", "numpy", "typer")


def facts(command: str) -> dict[str, Any]:
    """Plain values by name; no names of hosts and no paths but those of the command."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "machine": machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "gpu": _said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "compiler": _said("g++", "--version").partition("\n")[0],
        "commit": _said("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _said(*command: str) -> str:
    """What a command prints; "none" where there is no such command, or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return done.stdout.strip()
