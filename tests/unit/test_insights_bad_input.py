"""Recordings that lack something: each insight refuses with its reason, or its answer says what is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import duckdb
import pytest

from constructed import SECOND_NS, empty_database, store_logs
from insights_page import GPU, JOBS, answered
from json_schema import faults
from rankmem_aggregator import connect
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.query.insight_questions import NO_END
from rankmem_aggregator.store.schema import stored_name
from rankmem_protos.tables import TABLES
from remedied_steps import remedied_steps

pytestmark = pytest.mark.slow

HOUR_NS: Final = 3600 * SECOND_NS
NO_CALLS: Final = ", ".join(
    f"{name} = NULL" for name in ("operator", "category", "phase", "module", "stack_id", "forward_stack_id")
)
INPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "without steps": ("DELETE FROM step", "DELETE FROM step_bucket"),
    "with one step": ("DELETE FROM step WHERE step > 0", "DELETE FROM step_bucket WHERE step > 0"),
    "imported without calls": (
        f"UPDATE {stored_name(TABLES['allocation_record'])} SET {NO_CALLS}",
        "UPDATE session SET source = 'torch-snapshot'",
        "UPDATE rank_info SET complete = NULL",
    ),
    "not finished": ("UPDATE rank_info SET ended_at_ns = NULL, end_reason = NULL",),
    "of some ranks": ("UPDATE rank_info SET world_size = 200",),
    "with clocks an hour apart": (
        f"UPDATE rank_info SET started_at_ns = started_at_ns + {HOUR_NS} WHERE host_uid <> 'host-0'",
        f"UPDATE {stored_name(TABLES['memory_event'])} SET time_ns = time_ns + {HOUR_NS} WHERE rank > 7",
    ),
}
"""What a good recording is made into."""
REASONS: Final[Mapping[tuple[str, str], str]] = {
    **{("without steps", verb): "no steps" for verb in ("fit", "whatif", "leaks", "diff")},
    ("with one step", "fit"): "one step of rank 0, cpu was recorded",
    ("with one step", "whatif"): "one step of rank 0, cpu was recorded",
    ("with one step", "leaks"): "1 step recorded, at least 10 are needed",
    ("with one step", "diff"): "has 1 step, at least 5 are needed",
    ("imported without calls", "fit"): "what the model was given is known of no step",
    ("imported without calls", "whatif"): "has no operators: imported without calls",
    ("imported without calls", "leaks"): "has neither operators nor stacks",
    ("not finished", "diff"): "has no end: it may still run",
    ("of some ranks", "diff"): "is incomplete, so its figures may be wrong: ranks 1 to 199: never reported",
}
"""Why an insight cannot tell; where it can, it says what is in LACKS."""
SLOW: Final = ("diagnose", "imbalance")
"""Whose recordings are large, or which ask all others."""
LACKS: Final[Mapping[str, tuple[bool | None, str]]] = {
    "imported without calls": (None, "does not show whether it holds every event"),
    "not finished": (None, NO_END),
    "of some ranks": (False, "to 199: never reported"),
}
"""Whether the answer's figures are known to be right, and what it says is lacking."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Answer]]:
    """By verb a good recording that it finds something in, and its answer."""
    folder = tmp_path_factory.mktemp("good")

    @cache
    def made(verb: str) -> tuple[Path, Answer]:
        path = folder / f"{verb}.duckdb"
        with empty_database(str(path)) as connection:
            JOBS[verb](connection)
        return path, answered(str(path), verb)

    return made


@pytest.mark.parametrize(
    ("lacking", "verb"),
    [
        pytest.param(lacking, verb, marks=[pytest.mark.long] if verb in SLOW or (place + each) % 2 else [])
        for place, lacking in enumerate(INPUTS)
        for each, verb in enumerate(JOBS)
    ],
)
def test_a_recording_that_lacks_something_is_refused_or_the_answer_says_it(
    lacking: str, verb: str, recorded: Callable[[str], tuple[Path, Answer]], tmp_path: Path
) -> None:
    good, expected = recorded(verb)
    assert (expected.verdict, expected.complete, expected.missing) == ("finding", True, [])
    path = tmp_path / "job.duckdb"
    shutil.copy(good, path)
    with duckdb.connect(str(path)) as connection:
        for statement in INPUTS[lacking]:
            connection.execute(statement)
    answer = answered(str(path), verb)
    for each in (expected, answer):
        assert faults(schema_of(verb), json.loads(json.dumps(each.as_dict()))) == []
    complete, words = LACKS.get(lacking, (True, ""))
    assert answer.complete is complete
    assert any(words in line for line in answer.missing) if words else not answer.missing
    if (lacking, verb) in REASONS:
        assert (answer.verdict, answer.exit_code(), answer.rows.num_rows) == ("cannot tell", 2, 0)
        assert REASONS[lacking, verb] in answer.sentence
        return
    assert answer.verdict == "finding"
    if complete is False:
        assert answer.certainty == "suspected"
    if complete:
        assert answer == expected, "it needs none of what is lacking"


def test_a_session_of_which_most_insights_cannot_tell_does_not_look_fine(tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [remedied_steps(5, device=GPU)])
        connection.execute(f"UPDATE {stored_name(TABLES['allocation_record'])} SET {NO_CALLS}")
    answer = answered(str(path), "diagnose")
    assert (answer.verdict, answer.exit_code()) == ("cannot tell", 2)
    assert answer.sentence.startswith("nothing was found that would lower the peak, but 5 of 7 insights ")
    assert "imported without calls" in answer.sentence


def test_where_the_allocator_cannot_be_replayed_nothing_is_said_not_to_fit(tmp_path: Path) -> None:
    path = tmp_path / "job.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [remedied_steps(5, device=GPU)])
    with connect(path) as queries:
        answer = queries.fit(in_bytes=1 << 30)
    assert answer.figures["not_replayed"]
    assert answer.sentence.startswith(
        "2x the batch holds 129.00 MiB on rank 0, cuda:0: it may or may not fit"
    )
