"""The page's answers: a module for each kind of question, and all of their routes."""

from __future__ import annotations

from typing import Final

from rankmem_aggregator.page.answers import curve, heat, job, schema, sessions, sql
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute

ROUTES: Final[tuple[SessionRoute | DatabaseRoute, ...]] = (
    *sessions.ROUTES,
    *job.ROUTES,
    *heat.ROUTES,
    *curve.ROUTES,
    *sql.ROUTES,
    *schema.ROUTES,
)
"""All routes below ``/api/v1``."""
