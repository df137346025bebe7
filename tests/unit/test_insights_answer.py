"""The shape that all insights share: exit codes, JSON, and what is said of gaps."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from json_schema import faults
from rankmem_aggregator.insights.answer import CERTAINTIES, JSON_SCHEMA, Answer, Certainty, Verdict
from rankmem_aggregator.insights.json_schemas import FIGURES, ROWS, schema_of
from rankmem_aggregator.query.missing import with_missing
from rankmem_cli.show.insight import CERTAINTY_WORDS, show_insight
from rankmem_cli.show.render import Format
from rankmem_cli.show.table import plain_columns

GAP = {"attempt": 0, "rank": 3, "sentence": "2 records are missing", "is_bytes": True}


def answer(verdict: Verdict = "finding", certainty: Certainty | None = "predicted", **others: Any) -> Answer:
    rows = with_missing(pa.table({"rank": [0], "bytes": [7]}), others.pop("lacks", []))
    return Answer(
        question="leaks", session_id="s", verdict=verdict, certainty=certainty, sentence="It grows.",
        error="1 of 100 wrong", rows=rows, notes=("a note",), next_commands=("rankmem peak",), **others,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "certainty", "fail_on", "code"),
    [
        ("fine", "exact", "suspected", 0),
        ("finding", "exact", None, 0),
        ("finding", "suspected", "suspected", 1),
        ("finding", "suspected", "predicted", 0),
        ("finding", "predicted", "predicted", 1),
        ("finding", "exact", "predicted", 1),
        ("cannot tell", None, None, 2),
        ("cannot tell", None, "exact", 2),
    ],
)
def test_the_exit_code_says_fine_finding_or_cannot_tell(
    verdict: Verdict, certainty: Certainty | None, fail_on: Certainty | None, code: int
) -> None:
    assert answer(verdict, certainty).exit_code(fail_on) == code


def test_the_json_is_as_its_schema_has_it() -> None:
    whole = json.loads(json.dumps(answer(lacks=[GAP]).as_dict()))
    assert faults(JSON_SCHEMA, whole) == []
    assert set(whole) == set(JSON_SCHEMA["required"]) == set(JSON_SCHEMA["properties"])
    assert faults(JSON_SCHEMA, whole | {"verdict": "perhaps"}) == [
        "$.verdict is none of ['fine', 'finding', 'cannot tell']"
    ]


@pytest.mark.parametrize("verb", ROWS)
def test_every_insight_has_a_schema_of_its_rows_and_figures(verb: str) -> None:
    row = dict.fromkeys(ROWS[verb].names)
    whole = answer().as_dict() | {
        "question": verb,
        "rows": [row],
        "figures": dict.fromkeys(FIGURES[verb].names),
    }
    schema = schema_of(verb)
    assert faults(schema, whole) == []
    for name in ROWS[verb].names:
        assert faults(schema, whole | {"rows": [row | {name: object()}]})
    assert faults(schema, whole | {"rows": [{}]}) == [f"$.rows[0] has no {name}" for name in row]
    assert faults(schema, whole | {"rows": [row | {"more": 1}]}) == ["$.rows[0] has an unknown more"]
    assert faults(schema, whole | {"figures": {"more": 1}}) == ["$.figures has an unknown more"]


def test_every_answer_says_whether_the_recording_is_complete() -> None:
    unknown, names = GAP | {"is_bytes": None}, GAP | {"is_bytes": False}
    assert answer().gaps_text() == "the recording is complete"
    assert answer(lacks=[names]).gaps_text() == "the recording lacks names, no bytes"
    assert answer(lacks=[unknown]).gaps_text().startswith("the recording may be incomplete")
    assert answer(lacks=[GAP, unknown]).gaps_text().startswith("the recording is incomplete")
    assert answer(lacks=[GAP]).missing == ["rank 3: 2 records are missing"]


def test_the_sentence_comes_first_and_the_commands_last(capsys: pytest.CaptureFixture[str]) -> None:
    shown = answer(lacks=[GAP])
    show_insight(shown, plain_columns(shown.rows), output=Format.TABLE)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:3] == [
        "It grows.", "  predicted: 1 of 100 wrong", "  the recording is incomplete: figures may be wrong"
    ]  # fmt: skip
    assert lines[-2:] == ["a note", "next: rankmem peak"]
    assert err == "rank 3: 2 records are missing\n"


def test_what_cannot_be_told_is_said_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    shown = answer("cannot tell", None)
    show_insight(shown, plain_columns(shown.rows), output=Format.TABLE)
    assert capsys.readouterr().out.startswith("cannot tell: It grows.\n")


def test_the_certainties_of_the_command_line_are_those_of_answers() -> None:
    assert CERTAINTY_WORDS == CERTAINTIES
