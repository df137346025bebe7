"""Building the tap: once for all who ask, never half, never from a folder that others may write."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankmem_agent.tap import build, doctor, prebuilt
from rankmem_protos.errors import Code, RankmemError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("RANKMEM_TAP_CACHE", str(path))
    return path


def _fake_compiler(folder: Path, body: str) -> str:
    """A compiler that notes each start in ``folder``/starts, then does ``body`` with $out set."""
    path = folder / "fake-g++"
    find_out = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done'
    path.write_text(f"#!/bin/sh\necho start >> {folder}/starts\n{find_out}\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_eight_ranks_that_start_at_once_compile_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", _fake_compiler(tmp_path, 'echo library > "$out"'))
    with ThreadPoolExecutor(8) as ranks:  # a lock is of the open file, so threads contend as processes do
        paths = set(ranks.map(lambda _: build.build_tap(), range(8)))
    assert len(paths) == 1
    assert (tmp_path / "starts").read_text().split() == ["start"]
    assert paths.pop().read_text() == "library\n"
    assert build.ensure_built().compiled_s == 0.0


def test_a_compiler_that_fails_leaves_nothing_and_its_error_is_told(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = 'echo half > "$out"; echo "unity.cpp:3: error: no such thing" >&2; exit 1'
    monkeypatch.setenv("CXX", _fake_compiler(tmp_path, body))
    with pytest.raises(RankmemError) as caught:
        build.build_tap()
    assert caught.value.code is Code.UNSUPPORTED
    assert "error: no such thing" in caught.value.message
    assert "CXX" in caught.value.hint
    assert list(cache.glob("*.so")) == []
    assert list(cache.glob("build-*")) == []


def test_a_real_compiler_error_shows_its_own_words(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "echo '#error rankmem test' | g++ -x c++ -fsyntax-only -"
    monkeypatch.setenv("CXX", _fake_compiler(tmp_path, body))
    with pytest.raises(RankmemError, match="#error rankmem test"):
        build.build_tap()


def test_another_compiler_makes_another_library(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", _fake_compiler(tmp_path, 'echo one > "$out"'))
    first = build.build_tap()
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("CXX", _fake_compiler(tmp_path / "other", 'echo another > "$out"'))
    assert build.build_tap() != first


def test_without_a_compiler_a_library_built_ahead_is_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", _fake_compiler(tmp_path, 'echo ahead > "$out"'))
    ahead = build.build_tap()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert build.build_tap() == ahead


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tap for this torch, compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKMEM_TAP_CACHE", str(tmp_path_factory.mktemp("made")))
        return build.build_tap()


@pytest.fixture
def came_along(cache: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tap that came with rankmem, for this torch; and no compiler."""
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    monkeypatch.setattr("rankmem_agent.tap.prebuilt.FOLDER", folder)
    path = folder / f"{made.stem.rpartition('-')[0]}.so"
    shutil.copy(made, path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return path


def test_a_tap_that_came_with_rankmem_needs_no_compiler(came_along: Path) -> None:
    built = build.ensure_built()
    assert (built.path, built.is_prebuilt, built.compiled_s) == (came_along, True, 0.0)
    checks = {check.name: check for check in doctor.examine()}
    assert checks["compiler"].ok
    assert "came with rankmem" in checks["tap"].detail


def test_a_tap_for_another_torch_is_not_taken(came_along: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "git_version", "another")
    with pytest.raises(RankmemError, match="no C\\+\\+ compiler found"):
        build.build_tap()


def test_a_tap_that_cannot_be_loaded_is_built_here(
    came_along: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    came_along.write_bytes(b"made for something else")
    monkeypatch.setenv("CXX", _fake_compiler(tmp_path, 'echo library > "$out"'))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert build.build_tap().parent == cache


def test_without_a_compiler_and_a_library_the_hint_says_what_to_install(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(RankmemError) as caught:
        build.build_tap()
    assert caught.value.code is Code.UNSUPPORTED
    assert "g++" in caught.value.hint
    found = {check.name: check for check in doctor.examine()}
    assert not found["compiler"].ok
    assert not found["tap"].ok
    assert "self test" not in found


def test_a_cache_that_others_may_write_is_refused(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(RankmemError) as caught:
        build.cache_dir()
    assert caught.value.code is Code.DENIED


def test_a_cache_is_made_for_this_user_alone(cache: Path) -> None:
    assert build.cache_dir() == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    assert cache.stat().st_uid == os.getuid()


def test_the_library_depends_on_every_source(cache: Path) -> None:
    names = {path.name for path in prebuilt.sources(has_cuda=True)}
    unity = (Path(build.__file__).parent / "unity.cpp").read_text().splitlines()
    included = {line.split('"')[1] for line in unity if line.startswith('#include "')}
    assert len(included) >= 7
    assert included <= names
    assert {"tap.h", "spool.h"} <= names
    assert not any("cuda" in path.name for path in prebuilt.sources(has_cuda=False))
