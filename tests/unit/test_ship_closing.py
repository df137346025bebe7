"""A session's folder goes when it is closed, delivered and nobody ships it; not before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankmem_agent.ship import closing
from rankmem_agent.ship.election import take_lock


@pytest.fixture
def session_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


def test_a_closed_and_empty_session_is_removed(session_dir: Path) -> None:
    closing.close(session_dir)
    assert closing.remove_if_over(session_dir)
    assert not session_dir.exists()


def test_a_session_that_nobody_closed_stays(session_dir: Path) -> None:
    assert not closing.remove_if_over(session_dir)
    assert session_dir.exists()


def test_a_closed_session_with_a_spool_in_the_making_stays(session_dir: Path) -> None:
    closing.close(session_dir)
    (session_dir / "0-0-1").mkdir()
    assert not closing.remove_if_over(session_dir)


def test_while_a_shipper_holds_the_lock_the_removal_is_its_own(session_dir: Path) -> None:
    closing.close(session_dir)
    lock_fd = take_lock(session_dir)
    assert lock_fd is not None
    closing.remove_unless_shipping(session_dir)
    assert session_dir.exists()
    os.close(lock_fd)
    closing.remove_unless_shipping(session_dir)
    assert not session_dir.exists()
    closing.remove_unless_shipping(session_dir)


def test_what_comes_while_a_closed_session_is_removed_stays(
    session_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing.close(session_dir)
    (session_dir / "shipper.log").touch()
    late = session_dir / "candidate-1"

    def has_spools(_: Path) -> bool:
        late.mkdir()  # just after the look
        (late / "control").touch()
        return False

    monkeypatch.setattr(closing, "_has_spools", has_spools)
    assert not closing.remove_if_over(session_dir)
    assert (late / "control").exists()
    assert closing.is_closed(session_dir), "it goes once that has ended"
