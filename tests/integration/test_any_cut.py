"""What a block and a call are does not depend on where batches end: real trainings, cut small and whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from recorded_models import paired_rows
from shadowed import blocks_of, recorded_steps

TRAININGS = ("fsdp1_mixed", "custom_backward")
LONG = ("fsdp2", "fsdp1_accumulate", "ddp", "gpt_checkpoint_reentrant", "lbfgs", "unet", "hooked",
        "step_within", "gradients_within", "generators", "scaler", "double_backward")  # fmt: skip
STEPS, AT_ONCE = 4, 53


@pytest.mark.parametrize(
    "training", [*TRAININGS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
)
def test_blocks_and_calls_are_the_same_in_small_batches_and_in_one(training: str, tmp_path: Path) -> None:
    recording = recorded_steps(training, tmp_path, STEPS)
    whole, cut = paired_rows(recording, len(recording.records)), paired_rows(recording, AT_ONCE)
    assert blocks_of(cut) == blocks_of(whole)
    calls = [{row["call_id"]: row for row in tables["operator_call"].to_pylist()} for tables in (cut, whole)]
    assert calls[0] == calls[1]
