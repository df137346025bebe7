"""All insights at once: what they find, ranked by the bytes that the recomputed peak loses.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer`` whose rows are at
most :data:`FINDINGS_MAX` findings. A failed allocation comes first, since it ended the run; then bytes, then
certainty. What an insight cannot tell is named with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.insights.answer import CERTAINTIES, Answer, Ask, Certainty
from rankmem_aggregator.insights.finding import Finder, Finding, Found, Question
from rankmem_aggregator.insights.findings import FINDERS
from rankmem_aggregator.insights.reading import EVENTS_MAX
from rankmem_aggregator.quantity_text import bytes_text, counted
from rankmem_protos.devices import by_weight
from rankmem_protos.errors import Code, RankmemError

FINDINGS_MAX: Final = 8
HELD_SHOWN: Final = 4
"""Categories at the peak that the notes name."""
PASSED_ON: Final = frozenset({Code.UNAVAILABLE, Code.DENIED})
"""Errors of the connection: they are not about one insight."""
OUT_OF_TIME: Final = "left out: no time was left"

SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("rank", pa.int64()),
        ("bytes", pa.int64()),
        ("peak_after", pa.int64()),
        ("certainty", pa.string()),
        ("evidence", pa.struct([("sql", pa.string())])),
        ("remedy", pa.string()),
        ("sentence", pa.string()),
        ("verb", pa.string()),
        ("is_lower_bound", pa.bool_()),
        ("peak_after_least", pa.int64()),
    ]
)
"""The rows of the answer. bytes: by which the peak falls without it, NULL where that is not computed;
peak_after: the peak then; evidence: a statement for ``rankmem sql``; verb: the command with the whole
answer; is_lower_bound: whether the peak falls by at least so many bytes, to at most the peak then;
peak_after_least: the peak then at least, peak_after where that is known to the byte."""
FINDING_SCHEMA: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A row of rankmem diagnose",
        "type": "object",
        "properties": {
            "kind": {"type": "string"},
            "rank": {"type": ["integer", "null"]},
            "bytes": {"type": ["integer", "null"]},
            "peak_after": {"type": ["integer", "null"]},
            "certainty": {"enum": list(CERTAINTIES)},
            "evidence": {
                "type": "object",
                "properties": {"sql": {"type": "string"}},
                "required": ["sql"],
            },
            "remedy": {"type": "string"},
            "sentence": {"type": "string"},
            "verb": {"type": "string"},
            "is_lower_bound": {"type": "boolean"},
            "peak_after_least": {"type": ["integer", "null"]},
        },
        "required": list(SCHEMA.names),
    }
)
"""What a row is in JSON, draft 7."""


def diagnose_of(
    ask: Ask,
    session_id: str,
    *,
    is_complete: bool | None = True,
    events_max: int = EVENTS_MAX,
    within_s: float | None = None,
    finders: Mapping[str, Finder] = FINDERS,
) -> Answer:
    """What all insights find.

    Args:
        ask: asks a named query.
        session_id: full id.
        is_complete: False: events are missing, and nothing is more than suspected.
        events_max: a device with more is not replayed.
        within_s: no further insight is asked after so many seconds; None: all are.
        finders: by name, in the order in which they are asked.
    """
    question = Question(ask=ask, session_id=session_id, events_max=events_max)
    until = None if within_s is None else time.monotonic() + within_s
    findings: list[Finding] = []
    reasons: dict[str, str] = {}
    for name, finder in finders.items():
        found = Found(cannot_tell=OUT_OF_TIME)
        if until is None or time.monotonic() < until:
            found = _asked(finder, question)
        findings += found.findings
        if found.cannot_tell is not None:
            reasons[name] = found.cannot_tell
    if is_complete is False:
        findings = [replace(each, certainty="suspected") for each in findings]
    findings.sort(key=_weight)
    return _answer(session_id, findings, reasons, _composition(ask, session_id), list(finders))


def _asked(finder: Finder, question: Question) -> Found:
    try:
        return finder(question)
    except RankmemError as error:
        if error.code in PASSED_ON:
            raise
        return Found(cannot_tell=f"{error.message}; {error.hint}")


def _weight(finding: Finding) -> tuple[Any, ...]:
    certainty = CERTAINTIES.index(finding.certainty)
    return finding.kind != "oom", -(finding.bytes or 0), -certainty, finding.kind, finding.rank or 0


def _composition(ask: Ask, session_id: str) -> str | None:
    """One line on what the highest rank held at its peak; None without events."""
    peaks = ask("peak", session=session_id, rank=None, attempt=None).to_pylist()
    own = [row for row in peaks if row["is_rank_peak"]]
    if not own:
        return None
    top = min(own, key=lambda row: by_weight(row["device_type"], row["peak_requested_bytes"]))
    groups = ask("peak_by_group", session=session_id, by="category", rank=top["rank"]).to_pylist()
    held = [
        f"{row['group_name'] or 'unknown'} {bytes_text(row['bytes_at_rank_peak'])}"
        for row in groups
        if row["device"] == top["device"] and row["bytes_at_rank_peak"]
    ]
    peak = bytes_text(top["peak_requested_bytes"])
    whose = f"rank {top['rank']} on {top['device']}"
    return f"the highest peak, {peak} of {whose}: {', '.join(held[:HELD_SHOWN])}"


def _answer(
    session_id: str,
    findings: list[Finding],
    reasons: dict[str, str],
    composition: str | None,
    names: list[str],
) -> Answer:
    shown = findings[:FINDINGS_MAX]
    rows = [_row(each) for each in shown]
    # That no failure was recorded tells nothing of the peak.
    told = [name for name in names if name not in reasons and name != "oom"]
    notes = [f"{number}. {_line(each)}" for number, each in enumerate(shown, 1)]
    if len(findings) > len(shown):
        notes.append(f"and {len(findings) - len(shown)} more")
    notes += [] if composition is None else [composition]
    notes += [f"cannot tell: {name}: {reason}" for name, reason in reasons.items()]
    if not findings and (not told or len(reasons) * 2 > len(names)):
        untold = f"{len(reasons)} of {len(names)} insights cannot tell"
        few = f"nothing was found that would lower the peak, but {untold}: "
        sentence = (few if told else "none of the insights can tell anything: ") + "; ".join(
            f"{name}: {reason}" for name, reason in reasons.items()
        )
        return Answer(
            question="diagnose",
            session_id=session_id,
            verdict="cannot tell",
            sentence=sentence,
            rows=SCHEMA.empty_table(),
            notes=tuple(notes),
            figures={"cannot_tell": reasons, "num_findings": 0},
        )
    return Answer(
        question="diagnose",
        session_id=session_id,
        verdict="finding" if findings else "fine",
        certainty=max(
            (each.certainty for each in findings), key=CERTAINTIES.index, default=_of_nothing(reasons)
        ),
        error=_error(len(findings), reasons, len(names)),
        sentence=_sentence(findings, reasons, len(names)),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures={"cannot_tell": reasons, "num_findings": len(findings)},
        notes=tuple(notes),
        next_commands=tuple(dict.fromkeys(each.verb for each in shown)),
    )


def _row(finding: Finding) -> dict[str, Any]:
    least = finding.peak_after_least if finding.is_lower_bound else finding.peak_after
    more = {"is_lower_bound": finding.is_lower_bound, "peak_after_least": least}
    return asdict(finding) | {"evidence": {"sql": finding.evidence}} | more


def _of_nothing(reasons: dict[str, str]) -> Certainty:
    return "suspected" if reasons else "predicted"


def _sentence(findings: list[Finding], reasons: dict[str, str], num_asked: int) -> str:
    if not findings and reasons:
        told = num_asked - len(reasons)
        others = "the other one cannot tell" if len(reasons) == 1 else "the others cannot tell"
        return f"{told} of {num_asked} insights found nothing that would lower the peak; {others}"
    if not findings:
        return "nothing found that would lower the peak"
    return f"{counted(len(findings), 'finding')}, the first: {findings[0].sentence}"


def _error(num_found: int, reasons: dict[str, str], num_asked: int) -> str:
    told = [] if not num_found else ["the certainty is that of the surest finding; each has its own"]
    if reasons:
        told.append(f"{len(reasons)} of {num_asked} insights cannot tell, wholly or in part")
    return "; ".join(told)


def _line(finding: Finding) -> str:
    return f"{_saved(finding)}{finding.certainty}: {finding.sentence}. Do: {finding.remedy}"


def _saved(finding: Finding) -> str:
    saved, after, least = finding.bytes, finding.peak_after, finding.peak_after_least
    if saved is None or after is None:
        return ""
    if not saved:
        return "saves nothing of the highest peak, "
    if least is None or least == after:
        return f"saves {bytes_text(saved)} (then {bytes_text(after)}), "
    both = list(dict.fromkeys(map(bytes_text, (least, after))))  # of little they may look the same
    then = " to ".join(both) if len(both) == 2 else f"about {both[0]}"
    why = "some of what these lines hold may be meant to stay"
    return f"saves at least {bytes_text(saved)} (then {then}: {why}), "
