"""The page's answers: a module for each kind of question, and all of their routes."""

from __future__ import annotations

from typing import Final

from rankmem_aggregator.page.answers import (
    cell,
    curve,
    diff,
    fit,
    headroom,
    heat,
    job,
    mindstudio,
    model,
    odd,
    peak,
    ranks_curve,
    schema,
    sessions,
    sql,
    steps,
    trust,
)
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute

ROUTES: Final[tuple[SessionRoute | DatabaseRoute, ...]] = (
    *cell.ROUTES,
    *curve.ROUTES,
    *diff.ROUTES,
    *fit.ROUTES,
    *headroom.ROUTES,
    *heat.ROUTES,
    *job.ROUTES,
    *mindstudio.ROUTES,
    *model.ROUTES,
    *odd.ROUTES,
    *peak.ROUTES,
    *ranks_curve.ROUTES,
    *schema.ROUTES,
    *sessions.ROUTES,
    *sql.ROUTES,
    *steps.ROUTES,
    *trust.ROUTES,
)
"""All routes below ``/api/v1``."""
