"""The last line of ``rankmem run``: the first finding of ``rankmem diagnose``.

Stage: the command line, after the training has ended. In: where the session is stored. Out: one line. It
takes :data:`WITHIN_S`, and what an insight that is amid a replay then still takes, of :data:`EVENTS_MAX`
events at most; it never fails the run.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from rankmem_cli.show.units import safe_text
from rankmem_protos.errors import RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.query.next_commands import GivenOptions
    from rankmem_aggregator.query.queries import Queries

WITHIN_S: Final = 5.0
"""The job's nodes wait for it."""
EVENTS_MAX: Final = 5_000
"""Of a device, that are replayed: all settings in under two seconds."""


def finding_line(
    queries: Queries, session_id: str, given: GivenOptions, *, within_s: float = WITHIN_S
) -> str:
    """The first finding, or why there is none.

    Args:
        queries: where the session is stored.
        session_id: full id.
        given: the options with which a reading verb finds it.
        within_s: statements that run longer are ended.
    """
    more = given.complete("rankmem diagnose")
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        queries.interrupt()

    timer = threading.Timer(within_s, end)
    timer.name, timer.daemon = "rankmem-finding", True
    timer.start()
    try:
        answer = queries.diagnose(session_id, events_max=EVENTS_MAX, within_s=within_s).asked_with(given)
    except Exception as error:  # noqa: BLE001  the training has ended well: a fault here must not fail it
        if is_late.is_set():
            return f"no finding within {within_s:g} s: {more}"
        reason = error.message if isinstance(error, RankmemError) else f"{type(error).__name__}: {error}"
        return f"no finding, the insights were not asked to the end ({safe_text(reason)}): {more}"
    finally:
        timer.cancel()
        queries.allow()
    if answer.verdict == "finding":
        first = answer.rows.to_pylist()[0]
        return f"finding ({first['certainty']}): {safe_text(first['sentence'])}: {more}"
    left_out = ", ".join(answer.figures["cannot_tell"])
    untold = f" (cannot tell here: {left_out})" if left_out else ""
    return f"no finding{untold}: {more}"
