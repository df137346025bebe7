"""Trains before and within ``with rankmem.record():``, and writes what torch says of the recorded part.

Stage: the user's script or notebook, whose device holds blocks already as the recording begins.
``part.py --device cuda --db FILE --out FILE``: a JSON object as train.py's.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import rankmem
from gpu.train import HISTORY_ENTRIES, history_of
from gpu.workloads import WORKLOADS, Options

STEPS = 3


def main() -> None:
    """Trains, and writes what torch says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    step = WORKLOADS["gpt"](Options(device=given.device, batch=4))
    for _ in range(STEPS):
        step()
    told: dict[str, Any] = {}
    if given.device == "cuda":
        torch.cuda.synchronize()
        told["before"] = torch.cuda.memory_stats()["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(context=None, max_entries=HISTORY_ENTRIES)
    with rankmem.record(given.db):
        for _ in range(STEPS):
            step()
        if given.device == "cuda":
            torch.cuda.synchronize()
            told |= {
                "stats": dict(torch.cuda.memory_stats()),
                "max_allocated": torch.cuda.max_memory_allocated(),
            }
            told |= history_of(torch.cuda.memory._snapshot())
    told["peak"] = str(rankmem.peak())
    given.out.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
