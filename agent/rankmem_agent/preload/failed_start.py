"""The agent cannot start: the rank is listed all the same, with the reason.

Stage: trainer, while the agent starts. In: the rank and the error; out: what ``not_recorded`` writes, or
nothing. It needs nothing that may have failed, so it imports that only within its guard.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own is not worth its import here
if TYPE_CHECKING:
    from rankmem_agent.preload.rank_detection import DetectedRank


def record_failed_start(mine: DetectedRank, error: Exception, *, is_worker: bool = False) -> None:
    """Without the tap: that there is this rank, and why nothing is known of it. Raises nothing."""
    try:
        from rankmem_agent.preload import not_recorded

        not_recorded.record(mine, error, is_worker=is_worker)
    except Exception:  # noqa: BLE001  the guard has reported it; this may fail of the same
        pass
