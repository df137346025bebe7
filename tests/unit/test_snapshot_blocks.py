"""The sizes of blocks that follow from the allocator's history, against the allocator's own.

The recordings are those of ``test_replay_settings``: snapshots of PyTorch 2.11 for CUDA 13 under each setting
of its allocator, from the first event on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankmem_agent.tap.snapshot_blocks import BlockSizes, Figures, held_in
from rankmem_agent.tap.snapshot_format import events_of
from rankmem_imports.files.plain_pickle import load_plain

FOLDER = Path(__file__).with_name("recordings")
HIGH = Figures(allocated=2**50, active=2**50, requested=2**50)


def recorded(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = load_plain(FOLDER / f"allocator_{name}.pickle.gz")
    return raw


def followed(raw: dict[str, Any], settings: dict[str, Any]) -> BlockSizes:
    blocks = BlockSizes()
    blocks.set_up(settings)
    blocks.begin()
    for event in events_of(raw["device_traces"][0]):
        blocks.move(event.action, event.address, event.size_bytes)
    return blocks


@pytest.mark.parametrize("name", ["expandable", "max_split", "roundup", "collected", "retry", "streams"])
def test_every_block_of_a_training_has_the_allocators_size_under_each_setting(name: str) -> None:
    raw = recorded(name)
    blocks = followed(raw, raw["allocator_settings"])
    held = held_in(raw["segments"])
    assert blocks.agree(held, HIGH, None)
    assert blocks.figures.allocated == held.figures.allocated > 0 or name == "streams"


@pytest.mark.parametrize("name", ["max_split", "roundup"])
def test_blocks_under_a_setting_that_is_not_known_do_not_agree(name: str) -> None:
    raw = recorded(name)
    assert not followed(raw, {}).agree(held_in(raw["segments"]), HIGH, None)


def test_peaks_other_than_the_allocators_do_not_agree() -> None:
    raw = recorded("collected")
    blocks, held = followed(raw, raw["allocator_settings"]), held_in(raw["segments"])
    reached = Figures(allocated=3_436_301_312, active=3_436_301_312, requested=3_422_517_563)
    none = Figures()
    assert blocks.agree(held, reached, none)
    assert not blocks.agree(held, reached._replace(allocated=reached.allocated + 512), none)
    assert not blocks.agree(held, reached._replace(active=reached.active - 512), none)
    reset = reached._replace(allocated=reached.allocated - 512, requested=reached.requested - 1)
    assert blocks.agree(held, reset, none), "the program reset them after the highest instant"
