"""The page's answers: a module for each kind of question, and all of their routes."""

from __future__ import annotations

from typing import Final

from rankmem_aggregator.page.answers import block_map, curve, heat, job, oom, segments, sessions
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute

ROUTES: Final[tuple[SessionRoute | DatabaseRoute, ...]] = (
    *sessions.ROUTES,
    *job.ROUTES,
    *heat.ROUTES,
    *curve.ROUTES,
    *block_map.ROUTES,
    *segments.ROUTES,
    *oom.ROUTES,
)
"""All routes below ``/api/v1``."""
