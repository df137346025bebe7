"""Each rank's place in the job's mesh is in ``rank_info``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from main_job import RUN, TORCHRUN, call, rankmem

SCRIPT = Path(__file__).parent / "training_scripts/meshed.py"


def test_four_ranks_of_a_mesh_are_stored_with_the_coordinates_that_torch_gives_them(tmp_path: Path) -> None:
    done = call((*RUN, "--", *TORCHRUN, "--nproc-per-node", "4", str(SCRIPT)), tmp_path)
    assert done.returncode == 0, done.stderr
    query = "SELECT rank, dp, tp, pp, cp, ep FROM rank_info ORDER BY rank"
    stored = json.loads(rankmem(tmp_path, "sql", query, "--format", "json"))
    said = sorted(tuple(map(int, line)) for line in re.findall(r"place (\d) (\d) (\d)", done.stdout))
    assert said == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    assert [tuple(row.values()) for row in stored] == [(*place, None, None, None) for place in said]
