"""A session's folder goes when it is closed, delivered and nobody ships it; not before."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest

from rankmem_agent.spool import folder
from rankmem_agent.spool.election import LOCK_NAME, take_lock
from rankmem_ship import closing, deliver, marks


@pytest.fixture
def session_dir(tmp_path: Path) -> Path:
    made = tmp_path / "session"
    made.mkdir()
    return made


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


def test_who_asked_for_the_spools_and_waits_no_more_is_not_left_them_later(session_dir: Path) -> None:
    held = take_lock(session_dir)
    assert held is not None
    assert closing.ask_for(session_dir, timeout_s=0.0) is None
    assert closing.ask_for(session_dir, timeout_s=0.1) is None, "its rank lives, for hours yet"
    assert closing.is_asked(session_dir)
    an_hour_ago = time.time() - 3600
    os.utime(session_dir / closing.ASKED_NAME, (an_hour_ago, an_hour_ago))
    assert not closing.is_asked(session_dir)
    os.close(held)


def test_a_session_that_another_run_has_closed_and_removed_is_closed(tmp_path: Path) -> None:
    closing.close(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_none(
    session_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[int] = []
    genuine = fcntl.flock

    def removed_and_made_anew(descriptor: int, operation: int) -> None:
        if not others:
            (session_dir / LOCK_NAME).unlink()  # by a shipper that found the session over, just before
            others.append(os.open(session_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT))
            genuine(others[0], fcntl.LOCK_EX)
        genuine(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_and_made_anew)
    assert take_lock(session_dir) is None, "somebody holds the one that is there"
    os.close(others[0])
    held = take_lock(session_dir)
    assert held is not None
    os.close(held)


def test_a_lock_in_a_folder_that_was_removed_meanwhile_is_an_error(
    session_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = fcntl.flock

    def removed(descriptor: int, operation: int) -> None:
        shutil.rmtree(session_dir)
        genuine(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed)
    with pytest.raises(FileNotFoundError):
        take_lock(session_dir)


def test_a_spool_that_is_set_aside_while_the_empty_folder_goes_stays(
    session_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = session_dir / marks.FOLDER_NAME
    aside.mkdir()
    (aside / LOCK_NAME).touch()
    late = aside / "0-0-1"
    genuine = folder.spools

    def spools(of: Path) -> list[Path]:
        found = genuine(of)
        late.mkdir()  # by the session's shipper, just after the look: it holds another lock
        (late / "meta.json").touch()
        return found

    monkeypatch.setattr(folder, "spools", spools)
    deliver._remove_if_empty(aside)
    assert (late / "meta.json").exists()


def test_an_empty_folder_of_what_was_set_aside_goes(session_dir: Path) -> None:
    aside = session_dir / marks.FOLDER_NAME
    aside.mkdir()
    (aside / LOCK_NAME).touch()
    deliver._remove_if_empty(aside)
    assert not aside.exists()
