"""The page's answers: a module for each kind of question, and all of their routes."""

from __future__ import annotations

from typing import Final

from rankmem_aggregator.page.answers import (
    blocks,
    curve,
    events,
    flame,
    groups,
    heat,
    inefficient,
    job,
    jump,
    mindstudio_curve,
    sessions,
    spans,
)
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute

ROUTES: Final[tuple[SessionRoute | DatabaseRoute, ...]] = (
    *sessions.ROUTES,
    *job.ROUTES,
    *heat.ROUTES,
    *curve.ROUTES,
    *blocks.ROUTES,
    *flame.ROUTES,
    *inefficient.ROUTES,
    *groups.ROUTES,
    *events.ROUTES,
    *spans.ROUTES,
    *jump.ROUTES,
    *mindstudio_curve.ROUTES,
)
"""All routes below ``/api/v1``."""
