"""The tap's events against Kineto's, which are recorded by torch itself at the same time."""

from __future__ import annotations

from pathlib import Path

from rankmem_agent.spool.layout import Kind
from tap_kineto import compare
from tap_process import record_process

TRAIN = """
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Sequential(
    torch.nn.Embedding(50, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 64), torch.nn.GELU(),
    torch.nn.Dropout(0.1), torch.nn.Linear(64, 50),
)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randint(0, 50, (8, 16))
def step():
    logits = model(data)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), data.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
step()
tap.enable(ALL)
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
    tap.record(Kind.STEP, step=1)
    for _ in range(3):
        step()
    tap.record(Kind.STEP, step=2)
profiler.export_chrome_trace(str(folder.parent / "trace.json"))
tap.close()
"""


def test_events_equal_kinetos_memory_events_one_by_one(tmp_path: Path) -> None:
    recording = record_process(TRAIN, tmp_path)
    assert recording.returncode == 0, recording.stderr
    compared = compare(recording, tmp_path / "trace.json")
    assert len(compared.ours) > 300
    assert compared.ours == compared.theirs
    # In the first profiled step the gradients of the step before die: as many as there are parameters,
    # less those that the step's own events replace. A rule, not an excuse: few against what is equal.
    assert compared.older_frees < len(compared.ours) / 10


def test_results_are_the_same_bit_for_bit_and_stdout_is_untouched(tmp_path: Path) -> None:
    train = """
from torch import nn
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(20):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print(loss.item().hex(), sum(p.double().sum().item() for p in model.parameters()).hex())
"""
    (tmp_path / "on").mkdir()
    (tmp_path / "off").mkdir()
    recorded = record_process("tap.enable(ALL)" + train, tmp_path / "on")
    plain = record_process(train, tmp_path / "off")
    assert recorded.returncode == plain.returncode == 0
    assert recorded.stdout == plain.stdout != ""
    assert recorded.stderr == plain.stderr == ""
    assert len(recorded.of(Kind.EVENT)) > 500
    assert len(plain.of(Kind.EVENT)) == 0
