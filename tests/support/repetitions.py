"""How often random tests are repeated, by profile.

RANKMEM_TEST_PROFILE names it. ``dev``, unless another is asked for, tries 10 examples, for the inner loop;
``ci`` tries 30, ``long`` 100. ``make test`` and CI run ``ci``, ``make test-long`` runs ``long``.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

PROFILE: Final = os.environ.get("RANKMEM_TEST_PROFILE", "dev")
_EXAMPLES: Final = {"dev": 10, "ci": 30, "long": 100}
_EXAMPLES_MIN: Final = 5

for _name, _count in _EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=_count,
        deadline=None,  # a loaded machine is no finding
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile(PROFILE)


def examples(factor: float) -> settings:
    """Settings of a test that tries this many times the profile's examples: fewer where each is slow."""
    return settings(max_examples=max(_EXAMPLES_MIN, round(_EXAMPLES[PROFILE] * factor)))


def seeds(count: int) -> range:
    """Seeds for ``parametrize``: ``count`` of them in the profile ``long``."""
    return range(max(1, count * _EXAMPLES[PROFILE] // _EXAMPLES["long"]))
