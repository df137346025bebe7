"""The wait for the last acknowledgement: who waits, for what, and how long."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rankmem_agent.preload import drain
from rankmem_agent.spool import folder, layout
from rankmem_agent.spool.layout import State

GONE_PID = 2**22 + 1


def _spool(session: Path, rank: int, **values: int) -> Path:
    spool = session / f"0-{rank}-1"
    spool.mkdir(parents=True)
    (spool / "control").write_bytes(bytes(layout.CONTROL_BYTES))
    _set(spool, pid=os.getpid(), state=State.ENDED, **values)
    folder.write_meta(spool, {})
    return spool


def _set(spool: Path, **values: int) -> None:
    fields = {field.name: field for field in layout.CONTROL_FIELDS}
    with open(spool / "control", "r+b") as control:
        for name, value in values.items():
            control.seek(fields[name].offset)
            control.write(int(value).to_bytes(layout.TYPE_BYTES[fields[name].ctype], "little"))


@pytest.fixture
def shipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain.election, "is_shipping", lambda _: True)


@pytest.mark.usefixtures("shipping")
def test_what_is_acknowledged_is_not_waited_for(tmp_path: Path) -> None:
    own = _spool(tmp_path, 0, next_seq=10, acked_seq=10)
    assert drain.wait(tmp_path, own, timeout_s=60)


@pytest.mark.usefixtures("shipping")
def test_the_last_rank_waits_for_the_others_records_too(tmp_path: Path) -> None:
    own = _spool(tmp_path, 0, next_seq=10, acked_seq=10)
    other = _spool(tmp_path, 1, next_seq=10, acked_seq=4)
    assert drain.pending_records(tmp_path) == 6
    acknowledged = threading.Timer(0.05, lambda: _set(other, acked_seq=10))
    acknowledged.start()
    assert drain.wait(tmp_path, own, timeout_s=60)
    acknowledged.join()


@pytest.mark.usefixtures("shipping")
def test_a_limit_that_passes_ends_the_wait(tmp_path: Path) -> None:
    own = _spool(tmp_path, 0, next_seq=10)
    assert not drain.wait(tmp_path, own, timeout_s=0.05)


@pytest.mark.usefixtures("shipping")
def test_who_is_not_the_last_does_not_wait(tmp_path: Path) -> None:
    own = _spool(tmp_path, 0, next_seq=10)
    other = _spool(tmp_path, 1, next_seq=10)
    _set(other, state=State.RUNNING)
    assert not drain.wait(tmp_path, own, timeout_s=60)


@pytest.mark.usefixtures("shipping")
def test_a_rank_that_was_killed_does_not_count_as_alive(tmp_path: Path) -> None:
    own = _spool(tmp_path, 0, next_seq=10, acked_seq=10)
    killed = _spool(tmp_path, 1, next_seq=10, acked_seq=10)
    _set(killed, state=State.RUNNING, pid=GONE_PID)
    assert not drain.is_alive(killed)
    assert drain.wait(tmp_path, own, timeout_s=60)


def test_a_shipper_that_died_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = _spool(tmp_path, 0, next_seq=10)
    monkeypatch.setattr(drain.election, "is_shipping", lambda _: False)
    monkeypatch.setattr(drain.electing, "elect", lambda _: _set(own, acked_seq=10))
    assert drain.wait(tmp_path, own, timeout_s=60)


def test_a_wait_of_zero_is_none(tmp_path: Path) -> None:
    assert not drain.wait(tmp_path, _spool(tmp_path, 0, next_seq=10), timeout_s=0)


def test_a_spool_that_was_deleted_has_nothing_pending(tmp_path: Path) -> None:
    spool = _spool(tmp_path, 0, next_seq=10)
    (spool / "control").unlink()
    assert drain.pending_records(tmp_path) == 0
    assert not drain.is_alive(spool)
