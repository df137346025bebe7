"""DDP and FSDP on two ranks: what the training itself says its tensors are, against the database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from category_account import account_of
from category_oracle import our_lives
from repetitions import long_but
from tap_process import record_process

SCRIPT = """
sys.path.insert(0, {support!r})
tap.enable(ALL)
from category_witness import run
run(tap, {name!r}, folder.parent)
tap.close()
"""
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


@pytest.mark.parametrize("name", long_but(TRAININGS, "ddp", "fsdp2"))
def test_what_the_training_knows_of_its_tensors_is_what_the_database_says(name: str, tmp_path: Path) -> None:
    recording = record_process(
        SCRIPT.format(support=str(Path(__file__).parents[1] / "support"), name=name), tmp_path
    )
    assert recording.returncode == 0, recording.stderr
    seen = json.loads((tmp_path / "witness.json").read_text())
    found = account_of(seen, list(our_lives(recording)[0].values()), int(recording.seq[-1]))
    assert found.share("wrong") == 0, found
    unknown = {said for said, ours in found.by_meaning if ours == "unknown"}
    assert unknown <= {"input"}, found  # the first batch: its line is not known to make data yet
    assert found.shares_of("input")["input"] > 0.6, found
    assert {said for said, _ in found.by_meaning} == {
        "parameter", "gradient", "optimizer_state", "activation", "input",
    }  # fmt: skip
    assert not found.false_inputs, "nothing but the data is input"
