"""DDP and FSDP2 on two ranks: what the training itself says its tensors are, against the database."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from category_oracle import Life, our_lives
from tap_process import record_process

SCRIPT = """
sys.path.insert(0, {tests!r})
tap.enable(ALL)
from category_witness import run
run(tap, {name!r}, folder.parent)
tap.close()
"""
SMALL_BYTES = 64
"""Scalars: the seed of a backward, a count of steps."""
TRAININGS = [
    "ddp",
    "ddp_view",
    "ddp_accumulate",
    "ddp_view_accumulate",
    "fsdp2",
    "fsdp2_accumulate",
    "fsdp2_mixed",
    "fsdp1",
    "fsdp1_orig",
    "fsdp1_accumulate",
    "fsdp1_mixed",
]

pytest.importorskip("torch.distributed.fsdp", reason="torch without torch.distributed")


@pytest.mark.parametrize("name", TRAININGS)
def test_what_the_training_knows_of_its_tensors_is_what_the_database_says(name: str, tmp_path: Path) -> None:
    recording = record_process(SCRIPT.format(tests=str(Path(__file__).parents[1]), name=name), tmp_path)
    assert recording.returncode == 0, recording.stderr
    lives = list(our_lives(recording)[0].values())
    witnessed = json.loads((tmp_path / "witness.json").read_text())
    disagree: Counter[tuple[str, str]] = Counter()
    inputs = set()
    for seq, address, category in witnessed:
        life = _alive_at(lives, seq, address)
        disagree[category, life.at(seq).name.lower()] += category != life.at(seq).name.lower()
        if category == "input":
            inputs.add(life.row["allocation_id"])
    assert not +disagree
    assert {category for category, _ in disagree} == {
        "parameter", "gradient", "optimizer_state", "activation", "input",
    }  # fmt: skip
    others = [
        {name: each.row[name] for name in ("allocation_id", "operator", "phase", "size_bytes", "stack_id")}
        for each in lives
        if each.last() == "input" and _is_large(each) and each.row["allocation_id"] not in inputs
    ]
    assert not others, "nothing but the data is input"


def _alive_at(lives: list[Life], seq: int, address: int) -> Life:
    (life,) = (
        each
        for each in lives
        if each.row["allocation_id"] < seq
        and (each.row["freed_seq"] is None or each.row["freed_seq"] >= seq)
        and each.row["address"] <= address < each.row["address"] + each.row["size_bytes"]
    )
    return life


def _is_large(life: Life) -> bool:
    return bool(life.row["size_bytes"] > SMALL_BYTES)
