"""How much worse a figure may get before it counts. Stage: query; pure functions over numbers."""

from __future__ import annotations

from typing import Final, NamedTuple

from rankmem_aggregator.insights.compare import Compared

SHARE_LIMIT: Final = 0.005
BYTES_LIMIT: Final = 64 << 10
"""Without a limit of the user's, a figure is worse beyond both, and beyond :data:`ERRORS` standard errors."""
ERRORS: Final = 3.0


class Limit(NamedTuple):
    """How much worse a figure may get: both, where both are given."""

    share: float = 0.0
    size_bytes: int = 0


def least_of(figure: Compared, limit: Limit | None) -> float:
    """The bytes from which on a difference counts, if it is no error."""
    own = limit if limit is not None else Limit(SHARE_LIMIT, BYTES_LIMIT)
    return max(own.share * figure.base, own.size_bytes)


def verdict_of(figure: Compared, limit: Limit | None, *, is_judged: bool) -> tuple[float, str | None]:
    """The bytes from which on a difference counts, and what it is."""
    least, error = least_of(figure, limit), ERRORS * figure.error
    if limit is None and not is_judged:
        return max(least, error), None
    if figure.difference > max(least, error):
        return max(least, error), "worse"
    if limit is not None and figure.difference > least:
        return least, "unclear"
    return max(least, error), "better" if -figure.difference > max(least, error) else "same"
