"""The spool's folder: where it goes, who may have made it, what is refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from rankmem_agent.config import AgentConfig
from rankmem_agent.spool import folder, launches
from rankmem_protos.errors import Code, RankmemError


def _config(**settings: str) -> AgentConfig:
    return AgentConfig.from_environment(settings)


def _room(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    monkeypatch.setattr(folder, "free_bytes", lambda _: free_bytes)


def test_memory_is_chosen_when_every_rank_of_the_host_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(RANKMEM_SPOOL_BYTES=str(64 * 2**20), TMPDIR="/tmp")
    _room(monkeypatch, 8 * 64 * 2**20 + folder.MARGIN_BYTES)
    assert folder.choose_root(config, 8) == folder.SHARED_MEMORY / f"rankmem-{os.getuid()}"


def test_the_temporary_folder_is_chosen_when_one_rank_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(RANKMEM_SPOOL_BYTES=str(64 * 2**20), TMPDIR="/tmp")
    _room(monkeypatch, 8 * 64 * 2**20 + folder.MARGIN_BYTES - 1)
    assert folder.choose_root(config, 8) == Path("/tmp") / f"rankmem-{os.getuid()}"


def _planted(root: Path, how: str, elsewhere: Path) -> None:
    elsewhere.mkdir()
    if how == "link":
        root.symlink_to(elsewhere)
    elif how == "dangling":
        root.symlink_to(elsewhere / "gone")
    elif how == "file":
        root.write_text("")
    else:
        root.mkdir()
        root.chmod(0o777)


@pytest.mark.parametrize("how", ["link", "dangling", "file", "open to all", "owner"])
def test_a_place_that_somebody_else_has_taken_is_passed_over_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    memory, temporary = tmp_path / "shm", tmp_path / "tmp"
    memory.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(folder, "SHARED_MEMORY", memory)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    _room(monkeypatch, 2**60)
    config = _config(TMPDIR=str(temporary))
    assert folder.passed_over(config, 1) is None
    if how == "owner":
        me = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: me)
    in_memory, on_disk, at_home = folder.default_roots(config)
    if how == "owner":
        in_memory.mkdir()
    else:
        _planted(in_memory, how, tmp_path / "theirs")
    assert folder.choose_root(config, 1) == on_disk
    line = folder.passed_over(config, 1)
    assert line is not None
    assert str(in_memory) in line
    assert f"recording into {on_disk}" in line
    if how != "owner":
        folder.create_spool(folder.choose_root(config, 1) / "session", attempt=0, rank=0)
        assert not any(file for file in (tmp_path / "theirs").iterdir())
        _planted(temporary / "x", how, tmp_path / "theirs too")
        os.rename(on_disk, tmp_path / "aside")
        os.rename(temporary / "x", on_disk)
        assert folder.choose_root(config, 1) == at_home


def test_where_every_place_is_taken_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "why_not_ours", lambda root: "another's")
    config = _config(TMPDIR=str(tmp_path))
    _room(monkeypatch, 0)
    assert folder.passed_over(config, 1) is None
    folder.default_roots(config)[1].symlink_to(tmp_path)
    with pytest.raises(RankmemError, match="is not a folder of this user") as caught:
        folder.create_spool(folder.choose_root(config, 1) / "session", attempt=0, rank=0)
    assert caught.value.code is Code.DENIED


def test_a_told_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert (
        folder.choose_root(_config(RANKMEM_SPOOL_DIR=str(tmp_path / "deep/down")), 8)
        == tmp_path / "deep/down"
    )


def test_a_network_file_system_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(folder, "file_system", lambda _: "nfs4")
    with pytest.raises(
        RankmemError, match="RANKMEM_SPOOL_DIR is on a network file system \\(nfs4\\)"
    ) as caught:
        folder.choose_root(_config(RANKMEM_SPOOL_DIR=str(tmp_path)), 1)
    assert caught.value.code is Code.INVALID


def test_the_file_system_is_that_of_the_longest_and_latest_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "root / ext4 rw 0 0\nsrv:/home /home nfs4 rw 0 0\ntmp /home/me tmpfs rw 0 0\n"
        "srv:/x /with\\040blank lustre rw 0 0\nover / overlay rw 0 0\n"
    )
    kinds = {
        path: folder.file_system(Path(path), mounts)
        for path in ("/home/you/spool", "/home/me/spool", "/homework", "/with blank/spool", "/")
    }
    assert kinds == {
        "/home/you/spool": "nfs4",
        "/home/me/spool": "tmpfs",
        "/homework": "overlay",
        "/with blank/spool": "lustre",
        "/": "overlay",
    }


def test_shared_memory_is_a_tmpfs_here() -> None:
    assert folder.file_system(folder.SHARED_MEMORY) == "tmpfs"


def test_folders_are_this_user_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        spool, start = folder.create_spool(tmp_path / "root/session", attempt=0, rank=1)
    finally:
        os.umask(before)
    assert start == 0
    assert spool.name == f"0-1-{os.getpid()}"
    for made in (spool, spool.parent, spool.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_process_that_replaced_itself_gets_another_spool(tmp_path: Path) -> None:
    first, _ = folder.create_spool(tmp_path / "session", attempt=0, rank=1)
    second, start = folder.create_spool(tmp_path / "session", attempt=0, rank=1)
    assert start == 1
    assert first != second


def _candidate_of(process: str, session_dir: Path) -> Path:
    path = folder.create_candidate(session_dir)
    folder.write_candidate(path, {"process": process})
    return path


def test_what_a_process_left_before_it_replaced_itself_goes(tmp_path: Path) -> None:
    first = _candidate_of(launches.process(os.getpid()), tmp_path / "session")
    (first / "segment-00000000").write_text("of the program before")
    second = folder.create_candidate(tmp_path / "session")
    assert (first, list(second.iterdir())) == (second, [])


def test_what_another_process_of_the_same_number_left_stays(tmp_path: Path) -> None:
    first = _candidate_of(f"{os.getpid()}-1", tmp_path / "session")
    second = folder.create_candidate(tmp_path / "session")
    assert first != second
    assert folder.candidates(tmp_path / "session") == [first]


def test_a_link_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RankmemError) as caught:
        folder.make_private(tmp_path / "root")
    assert caught.value.code is Code.DENIED


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(RankmemError, match="not a folder of this user"):
        folder.make_private(tmp_path / "root")


def test_a_folder_is_listed_as_a_spool_once_its_meta_is_whole(tmp_path: Path) -> None:
    spool, _ = folder.create_spool(tmp_path / "session", attempt=0, rank=0)
    (spool / "meta.json.new").write_text("{")
    (tmp_path / "session/shipper.log").write_text("")
    assert folder.spools(tmp_path / "session") == []
    folder.write_meta(spool, {"spool_id": "x"})
    assert folder.spools(tmp_path / "session") == [spool]
    meta = json.loads((spool / "meta.json").read_text())
    assert len(bytes.fromhex(meta.pop("secret"))) == folder.SECRET_BYTES
    assert meta == {"format": "rankmem-spool", "spool_id": "x"}


def test_a_spools_secret_is_its_own_and_its_owners_alone_to_read(tmp_path: Path) -> None:
    secrets = set()
    for rank in range(3):
        spool, _ = folder.create_spool(tmp_path / "session", attempt=0, rank=rank)
        old_mask = os.umask(0)
        try:
            folder.write_meta(spool, {"spool_id": "x"})
        finally:
            os.umask(old_mask)
        assert (spool / "meta.json").stat().st_mode & 0o777 == 0o600
        secrets.add(json.loads((spool / "meta.json").read_text())["secret"])
    assert len(secrets) == 3
    assert not (spool / "meta.json.new").exists()


def test_a_session_that_is_gone_has_no_spools(tmp_path: Path) -> None:
    assert folder.spools(tmp_path / "nothing") == []


def test_a_folder_that_others_may_write_into_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for mode in (0o707, 0o722, 0o777):
        root.chmod(mode)
        with pytest.raises(RankmemError, match=f"mode {mode:04o}") as caught:
            folder.create_spool(root / "s", attempt=0, rank=0)
        assert caught.value.code is Code.DENIED
    for mode in (0o755, 0o775, 0o1777):
        root.chmod(mode)
        folder.create_spool(root / "s", attempt=0, rank=0)


def test_the_folder_of_a_session_is_closed_even_where_it_was_open(tmp_path: Path) -> None:
    session = tmp_path / "s"
    session.mkdir(mode=0o755)
    spool, _ = folder.create_spool(session, attempt=0, rank=0)
    assert stat.S_IMODE(session.stat().st_mode) == stat.S_IMODE(spool.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_spool_of_another_user_is_not_shipped(tmp_path: Path) -> None:
    from rankmem_ship.deliver import deliver
    from spool_synthetic import SyntheticSpool

    spool = SyntheticSpool(path=tmp_path / "s" / "0-0-1", aggregator="192.0.2.1:7077")
    spool.end()
    os.chown(spool.path, 4242, 4242)
    report = deliver(tmp_path, timeout_s=0.1)
    assert report.spools_left == 1
    assert "is not a folder of this user" in str(report.errors)
