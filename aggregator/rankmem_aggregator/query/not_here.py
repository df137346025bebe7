"""The error of a question that needs rows of events which stayed on their host.

Stage: query, where DuckDB's errors become ours. In: the text that a lake's tables raise (see
``lake.not_here``); out: a :class:`RankmemError` with the rank and the command that brings its rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankmem_aggregator.quantity_text import counted
from rankmem_protos.errors import Code, RankmemError

MARK: Final = "rows-not-here "
"""Begins the text; then session, attempt, rank, counts of stretches (missing, gone, all) and the host."""
AN_AGGREGATOR: Final = "HOST:PORT"
"""In a hint where the address is not known: of a lake's reader, or of an aggregator that is asked."""
_WORDS: Final = "are not here:"
_TEXT: Final = re.compile(re.escape(MARK) + r"(\S+) (\d+) (\d+) (\d+) (\d+) (\d+) ?(\S*)")


def not_here_error(text: str) -> RankmemError | None:
    """The error that a text of DuckDB's stands for; None: another one."""
    found = _TEXT.search(text)
    if found is None:
        return None
    session, attempt, rank, host = found[1], int(found[2]), int(found[3]), found[7]
    missing, gone, stretches = (int(found[n]) for n in (4, 5, 6))
    whose = f"rank {rank}" + (f" (attempt {attempt})" if attempt else "")
    lost = f", {gone} of them gone for ever" if gone else ""
    message = (
        f"events of {whose} of session {session} {_WORDS} {missing} of {stretches} stretches of its log "
        f"stayed on host {host or 'unknown'}{lost}"
    )
    if gone:
        return RankmemError(
            Code.NOT_FOUND,
            message,
            "peak, status, ranks and steps need none of them, and questions about other ranks are answered",
        )
    hint = f"rankmem fetch {session} --ranks {rank} --aggregator {AN_AGGREGATOR} brings them"
    return RankmemError(Code.NOT_FOUND, message, hint)


def peak_not_here(session: str, missing: Sequence[Mapping[str, Any]], aggregator: str) -> RankmemError:
    """The error of a question about the job's peak which stretches that are not here can change.

    Args:
        session: the full id.
        missing: rows of ``stretches_at_peak``.
        aggregator: to which the hosts of the session ship, as its reader may call it.
    """
    ranks = len({(row["attempt"], row["rank"]) for row in missing})
    hosts = sorted({row["host_uid"] or "unknown" for row in missing})
    gone = sum(row["is_gone"] for row in missing)
    lost = f", {gone} of them gone for ever" if gone else ""
    message = (
        f"events of {counted(ranks, 'rank')} that can change the peak of session {session} {_WORDS} "
        f"{len(missing):,} {'stretch' if len(missing) == 1 else 'stretches'} stayed on {_named(hosts)}{lost}"
    )
    hint = f"rankmem fetch {session} --around job-peak --aggregator {aggregator} brings them"
    if missing and gone == len(missing):
        hint = "job_peak_interval has its bounds: rankmem job-peak shows them"
    return RankmemError(Code.NOT_FOUND, message, hint)


def _named(hosts: Sequence[str]) -> str:
    return f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts"


def is_not_here(error: RankmemError) -> bool:
    """Whether it is such an error, here or as an aggregator sent it."""
    return error.code is Code.NOT_FOUND and _WORDS in error.message
