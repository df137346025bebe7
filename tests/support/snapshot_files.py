"""Snapshot files as the trainer's own reader takes them apart."""

from __future__ import annotations

from pathlib import Path

from rankmem_agent.tap.snapshot_format import DeviceSnapshot, parse
from rankmem_imports.files.plain_pickle import load_plain


def read(path: Path) -> list[DeviceSnapshot]:
    """The devices in a snapshot file that have events or segments."""
    return parse(load_plain(path), source=str(path))
