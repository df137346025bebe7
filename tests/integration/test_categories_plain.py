"""Tensors outside of modules and optimizers, and caches: what the script knows of them, against the database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from category_account import Account, account_of
from category_oracle import our_lives
from tap_process import record_process

SCRIPT = """
sys.path.insert(0, {tests!r})
tap.enable(ALL)
from category_witness_plain import run
run(tap, {name!r}, folder.parent)
tap.close()
"""


def account(name: str, folder: Path) -> Account:
    recording = record_process(SCRIPT.format(tests=str(Path(__file__).parents[1]), name=name), folder)
    assert recording.returncode == 0, recording.stderr
    at_once, _ = our_lives(recording)
    in_parts, _ = our_lives(recording, batches=23)
    assert {n: life.last() for n, life in at_once.items()} == {n: life.last() for n, life in in_parts.items()}
    seen = json.loads((folder / "witness.json").read_text())
    return account_of(seen, list(at_once.values()), int(recording.seq[-1]))
