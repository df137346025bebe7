"""Real jobs of two ranks: what they have sharded is not offered again, and what they have not is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harmless_runs import SCRIPTS
from main_job import RUN, TORCHRUN, call, rankmem
from repetitions import long_but

WAYS = {
    "ddp": "nothing",
    "momentum": "nothing",
    "adafactor": None,
    "zero_redundancy": "state",
    "fsdp1": "parameters",
    "fsdp1_orig": "parameters",
    "fsdp1_none": None,
    "fsdp1_orig_none": "nothing",
    "fsdp2": "parameters",
}

pytest.importorskip("torch.distributed.fsdp", reason="torch without torch.distributed")


@pytest.mark.parametrize("way", long_but(list(WAYS), "fsdp1_orig"))
def test_a_job_s_own_sharding_is_known(way: str, tmp_path: Path) -> None:
    train = (*TORCHRUN, "--nproc-per-node", "2", str(SCRIPTS / "sharded.py"), way)
    done = call((*RUN, "--db", "job.duckdb", "--", *train), tmp_path, GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr
    for rank in ("0", "1"):
        arguments = ("whatif", "--db", "job.duckdb", "--rank", rank, "--format", "json")
        answer = json.loads(rankmem(tmp_path, *arguments))
        saved = {row["remedy"]: row for row in answer["rows"]}
        assert answer["figures"].get("sharded") == WAYS[way]
        assert (saved["zero1"]["saved_bytes"] > 0) == (WAYS[way] == "nothing")
        assert ("if not done already" in saved["zero1"]["what"]) == (WAYS[way] is None)
        if WAYS[way] == "parameters":
            remedies = ("zero1", "zero2", "fsdp")
            assert {saved[each]["peak_after_least_bytes"] for each in remedies} == {
                answer["figures"]["peak_bytes"]
            }
