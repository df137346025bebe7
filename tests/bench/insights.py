"""How right the insights are, and how fast: each beside the naive way, in one run.

Run: ``python tests/bench/insights.py [--quick] [--json FILE]``. A part alone:
``python tests/bench/insights.py --only leaks``.
"""

from __future__ import annotations

import sys

import harness
import insights_diagnose
import insights_diff
import insights_fit
import insights_fragmentation
import insights_imbalance
import insights_leaks
import insights_oom
import insights_whatif

PARTS = {
    "fragmentation": insights_fragmentation.measure,
    "fit": insights_fit.measure,
    "whatif": insights_whatif.measure,
    "leaks": insights_leaks.measure,
    "imbalance": insights_imbalance.measure,
    "oom": insights_oom.measure,
    "diff": insights_diff.measure,
    "diagnose": insights_diagnose.measure,
}


def measure(options: harness.Options) -> list[harness.Figure]:
    """The figures of all parts that were asked for."""
    return [figure for name in CHOSEN for figure in PARTS[name](options)]


def _chosen() -> list[str]:
    if "--only" not in sys.argv:
        return list(PARTS)
    place = sys.argv.index("--only")
    _, name = sys.argv[place : place + 2]
    del sys.argv[place : place + 2]
    return [name]


CHOSEN = _chosen() if __name__ == "__main__" else list(PARTS)

if __name__ == "__main__":
    harness.main("insights", "what insights say, and how often they are right", measure)
