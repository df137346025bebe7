"""No process of ours loads pandas, which pyarrow would: neither the command line nor what records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from main_job import RANKMEM, environment


def test_no_process_of_a_recorded_training_loads_it(tmp_path: Path) -> None:
    """Each of them names what it imports: the training with its shipper, the aggregator, the command line."""
    pytest.importorskip("pandas")
    train = "import torch; held = torch.zeros(10)"
    done = subprocess.run(
        (*RANKMEM, "run", "--", sys.executable, "-c", train),
        cwd=tmp_path,
        env=environment(tmp_path, PYTHONPROFILEIMPORTTIME="1"),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    loaded = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line]
    assert {"pyarrow", "torch", "duckdb"} <= set(loaded)
    assert "rankmem_aggregator.server.aggregator" in loaded
    assert not [name for name in loaded if name.startswith("pandas.")]


def test_a_package_that_needs_it_has_it() -> None:
    pytest.importorskip("pandas")
    program = """
import sys
import pyarrow as pa
from rankmem_protos.without_pandas import admit_pandas, leave_pandas_out
leave_pandas_out()
table = pa.table({"a": [1]})
assert "pandas" not in sys.modules
admit_pandas()
print(table.to_pandas()["a"].tolist())
"""
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=120, capture_output=True, text=True
    ).stdout
    assert said == "[1]\n"
