"""The page's answers: a module for each kind of question, and all of their routes."""

from __future__ import annotations

from typing import Final

from rankmem_aggregator.page.answers import (
    block_map,
    blocks,
    cell,
    curve,
    diff,
    events,
    fit,
    flame,
    groups,
    headroom,
    heat,
    inefficient,
    job,
    jump,
    mindstudio,
    mindstudio_curve,
    model,
    odd,
    oom,
    peak,
    ranks_curve,
    schema,
    segments,
    sessions,
    spans,
    sql,
    steps,
    trust,
)
from rankmem_aggregator.page.routes import DatabaseRoute, SessionRoute

ROUTES: Final[tuple[SessionRoute | DatabaseRoute, ...]] = (
    *block_map.ROUTES,
    *blocks.ROUTES,
    *cell.ROUTES,
    *curve.ROUTES,
    *diff.ROUTES,
    *events.ROUTES,
    *fit.ROUTES,
    *flame.ROUTES,
    *groups.ROUTES,
    *headroom.ROUTES,
    *heat.ROUTES,
    *inefficient.ROUTES,
    *job.ROUTES,
    *jump.ROUTES,
    *mindstudio.ROUTES,
    *mindstudio_curve.ROUTES,
    *model.ROUTES,
    *odd.ROUTES,
    *oom.ROUTES,
    *peak.ROUTES,
    *ranks_curve.ROUTES,
    *schema.ROUTES,
    *segments.ROUTES,
    *sessions.ROUTES,
    *spans.ROUTES,
    *sql.ROUTES,
    *steps.ROUTES,
    *trust.ROUTES,
)
"""All routes below ``/api/v1``."""
