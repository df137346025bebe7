"""The page's answers: a module for each kind of question, and all of their routes."""

from __future__ import annotations

from typing import Final

from rankmem_aggregator.page.answers import (
    curve,
    diff,
    fit,
    heat,
    job,
    mindstudio,
    model,
    peak,
    schema,
    sessions,
    sql,
    steps,
    trust,
)
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute

ROUTES: Final[tuple[SessionRoute | DatabaseRoute, ...]] = (
    *curve.ROUTES,
    *diff.ROUTES,
    *fit.ROUTES,
    *heat.ROUTES,
    *job.ROUTES,
    *mindstudio.ROUTES,
    *model.ROUTES,
    *peak.ROUTES,
    *schema.ROUTES,
    *sessions.ROUTES,
    *sql.ROUTES,
    *steps.ROUTES,
    *trust.ROUTES,
)
"""All routes below ``/api/v1``."""
