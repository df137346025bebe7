"""A rank that is not recorded says so, or leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.preload import not_recorded
from rankmem_agent.preload.rank_detection import DetectedRank
from rankmem_agent.spool import folder

ERROR = RuntimeError("no compiler")


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("RANKMEM_SPOOL_DIR", str(first))
    monkeypatch.setenv("RANKMEM_SESSION", "0123456789ab")
    monkeypatch.setattr(folder, "default_roots", lambda config: (second,))
    monkeypatch.setattr(not_recorded.electing, "elect", lambda session_dir: True)
    monkeypatch.setattr(not_recorded, "when_the_program_ends", lambda work: None)
    return first, second


def test_it_says_so_where_its_spool_would_be(roots: tuple[Path, Path]) -> None:
    said = not_recorded.record(DetectedRank(), ERROR)
    assert said == roots[0] / "0123456789ab" / f"0-0-{os.getpid()}"
    assert (said / "meta.json").exists()


def test_what_cannot_be_said_there_is_said_elsewhere_and_leaves_nothing(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = folder.write_meta

    def full(spool_dir: Path, facts: Any) -> None:
        if spool_dir.is_relative_to(roots[0]):
            raise OSError("no space left on device")
        genuine(spool_dir, facts)

    monkeypatch.setattr(folder, "write_meta", full)
    said = not_recorded.record(DetectedRank(), ERROR)
    assert said == roots[1] / "0123456789ab" / f"0-0-{os.getpid()}"
    assert not list((roots[0] / "0123456789ab").glob("0-*")), "a segment of 4 MiB, and nobody to remove it"
