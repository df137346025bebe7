"""Tensors outside of modules and optimizers, and caches: what the script knows of them, against the
database."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from category_account import Account, account_of
from category_oracle import Life, our_lives
from rankmem_agent.spool.layout import Kind
from repetitions import long_but_one_in
from tap_process import record_process

SCRIPT = """
sys.path.insert(0, {support!r})
tap.enable(ALL)
from category_witness_plain import run
run(tap, {name!r}, folder.parent)
tap.close()
"""

UNKNOWN = {
    "growing_no_grad": 0.30, "growing_inference_mode": 0.30, "growing_frozen": 0.30, "static_script": 0.55,
    "static_lazy": 0.55, "static_buffers": 0.55, "rollouts": 0.65, "told_growing": 0.01, "told_static": 0.01,
    "plain_in_place": 0.95, "plain_kept_gradients": 0.75, "plain_momentum": 1.0, "plain_data": 1.0,
    "plain_adam": 0.40, "manual_updates": 0.99, "averaged_gradients": 0.92, "func_grad": 0.95,
    "func_adam": 0.99, "func_ensemble": 1.0, "own_lion": 0.67, "own_lion_anew": 0.65, "own_flat": 0.75,
    "told_optimizer": 0.27,
}  # fmt: skip
"""How much of what the script holds may be unknown, of the bytes-over-time of what it noted. Much of it is
the data set, which lives as weights do."""
WRONG = {"func_grad": 0.06}
"""What may be wrong; nothing elsewhere. The gradients of the last step: that they are none of autograd's own
shows when the next forward runs."""


def account(name: str, folder: Path) -> Account:
    script = SCRIPT.format(support=str(Path(__file__).parents[1] / "support"), name=name)
    recording = record_process(script, folder, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    at_once, _ = our_lives(recording)
    in_parts, _ = our_lives(recording, batches=23)
    assert {n: life.last() for n, life in at_once.items()} == {n: life.last() for n, life in in_parts.items()}
    seen = json.loads((folder / "witness.json").read_text())
    return account_of(seen, list(at_once.values()), int(recording.seq[-1]))


@pytest.mark.parametrize("name", long_but_one_in(sorted(UNKNOWN), 3))
def test_nothing_is_called_what_it_is_not(name: str, tmp_path: Path) -> None:
    found = account(name, tmp_path)
    assert found.share("wrong") <= WRONG.get(name, 0), found
    assert found.share("unknown") <= UNKNOWN[name], found
    assert not found.false_inputs, found


def test_every_case_is_held_to_its_bounds() -> None:
    from category_witness_plain import CASES

    assert set(CASES) == set(UNKNOWN)


@pytest.mark.parametrize(("optimizer", "options"), [
    ("AdamW", "foreach=True"), ("AdamW", "foreach=False"), ("AdamW", "fused=True"),
    ("SGD", "lr=.1, momentum=.9"),
])  # fmt: skip
def test_at_the_peak_of_an_optimizers_step_its_scratch_is_temporary(
    optimizer: str, options: str, tmp_path: Path
) -> None:
    script = OPTIMIZER.format(
        support=str(Path(__file__).parents[1] / "support"), optimizer=optimizer, options=options
    )
    recording = record_process(script, tmp_path, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    lives = list(our_lives(recording)[0].values())
    steps = [int(seq) for seq, kind in zip(recording.seq, recording.records["kind"], strict=True)
             if kind == Kind.STEP]  # fmt: skip
    held = at_peak(lives, steps[-2], steps[-1])
    assert held.get("unknown", 0) < 0.01 * sum(held.values()), held


OPTIMIZER = """
sys.path.insert(0, {support!r})
tap.enable(ALL)
from category_witness import hooked
guard = hooked(tap).guard
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
optimizer = torch.optim.{optimizer}(net.parameters(), {options})
for _ in range(4):
    net(torch.randn(8, 256)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert not guard.failures
tap.close()
"""


def at_peak(lives: list[Life], first: int, last: int) -> Counter[str]:
    """Bytes by category where the most were held between two places, among what an optimizer had made."""
    in_step = [life.row["allocation_id"] for life in lives if first < life.row["allocation_id"] < last
               and life.row["phase"] == "optimizer"] or [last - 1]  # fmt: skip
    best: Counter[str] = Counter()
    for place in in_step:
        held: Counter[str] = Counter()
        for life in lives:
            freed = life.row["freed_seq"]
            if life.row["allocation_id"] <= place and (freed is None or freed > place):
                held[life.at(place).name.lower()] += life.row["size_bytes"]
        best = max(best, held, key=lambda each: sum(each.values()))
    return best
