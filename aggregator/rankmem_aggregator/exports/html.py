"""``rankmem export html``: the page in one file, to mail to someone.

Stage: export. In: the selection; out: one HTML file that opens offline; see ``page.one_file``.
"""

from __future__ import annotations

from pathlib import Path

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.log import no_events_error, tracks
from rankmem_aggregator.page.one_file import one_file


def write_html(selection: Selection, out: Path) -> ExportResult:
    """Writes the file."""
    if selection.from_ns is not None or selection.until_ns is not None:
        tracks(selection)  # NOT_FOUND for a range without events, as for the other kinds
    if not selection.queries.peak(selection.session_id).num_rows:
        raise no_events_error(selection)
    text = one_file(
        selection.queries,
        selection.session_id,
        ranks=selection.ranks,
        from_ns=selection.from_ns,
        until_ns=selection.until_ns,
        missing=selection.lacks,
        marks=selection.marks,
        progress=selection.progress,
    )
    out.write_text(text, encoding="utf-8")
    result = ExportResult()
    result.counts["bytes"] = len(text.encode())
    return result
