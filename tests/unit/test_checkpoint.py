"""The checkpoint file: whole or absent, the same state back, never a pickle."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.checkpoint import (
    CHECKPOINT_NAME,
    CHECKPOINT_VERSION,
    load_checkpoint,
    save_checkpoint,
)
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.pairing.state import PairingState
from rankmem_ship.spool_reader.reader import Chunk
from spool_synthetic import SyntheticSpool, reader_of, training_records


def some_state(tmp_path: Path) -> PairingState:
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(training_records(spool, 300, live_calls=50)[:-3])
    reader = reader_of(spool.path)
    pairing = Pairing(reader.meta, reader.strings)
    chunk = reader.read(10_000)
    assert isinstance(chunk, Chunk)
    pairing.feed(chunk)
    pairing.cut()
    return pairing.state


def test_the_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    state = some_state(tmp_path)
    assert len(state.live)
    assert len(state.calls)
    assert len(state.ranges)
    save_checkpoint(tmp_path, state)
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    for field in dataclasses.fields(PairingState):
        before, after = getattr(state, field.name), getattr(loaded, field.name)
        if field.name == "stacks_sent":
            assert not after.any()  # told again: harmless
        elif isinstance(before, np.ndarray):
            assert before.dtype == after.dtype
            assert (before == after).all()
        else:
            assert before == after


def test_without_a_checkpoint_there_is_no_state(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None


def test_a_half_written_checkpoint_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = some_state(tmp_path)
    save_checkpoint(tmp_path, state)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, dataclasses.replace(state, next_seq=10**9))
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded.next_seq == state.next_seq


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage"])
def test_a_damaged_checkpoint_is_refused_by_its_name(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, some_state(tmp_path))
    path = tmp_path / CHECKPOINT_NAME
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0xFF
    new = {"truncate": data[: len(data) // 2], "flip": data, "empty": b"", "garbage": b"\x80\x04hello"}[
        damage
    ]
    path.write_bytes(new)
    with pytest.raises(RankmemError, match=str(path)) as raised:
        load_checkpoint(tmp_path)
    assert raised.value.code is Code.INVALID


def test_a_pickled_array_is_refused_and_never_run(tmp_path: Path) -> None:
    bomb = np.array([{"a": 1}], dtype=object)
    facts = np.frombuffer(
        json.dumps({"format": "rankmem-checkpoint", "version": CHECKPOINT_VERSION, "state": {}}).encode(),
        "u1",
    )
    with (tmp_path / CHECKPOINT_NAME).open("wb") as file:
        np.savez(file, facts=facts, live=bomb)
    with pytest.raises(RankmemError, match="allow_pickle"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("version", [CHECKPOINT_VERSION - 1, CHECKPOINT_VERSION + 1])
def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    facts = np.frombuffer(json.dumps({"format": "rankmem-checkpoint", "version": version}).encode(), "u1")
    with (tmp_path / CHECKPOINT_NAME).open("wb") as file:
        np.savez(file, facts=facts)
    with pytest.raises(RankmemError, match=f"version {version}") as raised:
        load_checkpoint(tmp_path)
    assert raised.value.code is Code.UNSUPPORTED
