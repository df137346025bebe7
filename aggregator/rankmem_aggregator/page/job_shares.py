"""The ranks' shares of the job's peak, looked for once a state of a session, for all answers that need them.

Stage: page, in the threads of requests. Of 100 M events the search takes a second or two.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.reading import PageSession, Reading
from rankmem_aggregator.page.shared_rows import SharedRows
from rankmem_aggregator.query.peak_questions import SHARE_COLUMNS

PEAK_S: Final = 60.0
"""For an answer that may look for it: of a billion events the search takes that long."""
SHARES_KEPT: Final = 16
"""Sessions whose shares of the job's peak stay in memory, at 100 bytes a rank."""

_kept = SharedRows(SHARES_KEPT)


def job_shares(reading: Reading, session: PageSession) -> pa.Table:
    """The rows of ``job_peak`` for this state of the session."""
    key = (reading.queries.target, session.session_id, session.watermark)
    return _kept.get(key, lambda: reading.queries.job_peak(session.session_id))


def shares_text(shares: pa.Table) -> str:
    """The shares as a statement's parameter ``$shares``."""
    return json.dumps(shares.select(SHARE_COLUMNS).to_pylist())
